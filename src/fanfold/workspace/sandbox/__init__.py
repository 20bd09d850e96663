"""The sandbox: how a program is started so that it sees and changes only what its step may."""
