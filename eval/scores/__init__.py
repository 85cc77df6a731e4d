"""Scores of some tasks: entities, ratings, GLUE and its submissions; predictions in the layouts they are read in."""
