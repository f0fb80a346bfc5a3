"""What pages show of results, as plain records: the words and numbers are here, the look is in the templates."""
