"""Files below a workspace: confined access, walking, copying, what is ignored, where our own things lie."""
