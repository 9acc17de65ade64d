"""The checks of a checkpoint, a file for each area; importing one registers its functions."""
