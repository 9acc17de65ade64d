"""Will it fit, and how fast will it be: arithmetic on a model, its modules and the cards."""
