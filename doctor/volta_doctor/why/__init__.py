"""From texts to causes: what `volta-doctor why` concludes, how sure it is, and what is missing."""
