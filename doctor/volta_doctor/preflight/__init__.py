"""A checkpoint with the flags and the cards that it is meant for, as `volta-doctor model` judges."""
