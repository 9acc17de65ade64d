"""What `volta-doctor model` judges: a checkpoint, and the flags and cards it is meant for."""
