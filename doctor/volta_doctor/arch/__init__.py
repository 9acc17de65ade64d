"""`volta-doctor arch`: which machine code a file holds, and whether a card runs it."""
