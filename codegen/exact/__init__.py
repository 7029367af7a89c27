"""Random points, exactly: where gates compare both sides of a pass.

A spec is run here from the terms that its author wrote.
"""
