#!/bin/sh
# Denies whatever looks like writing.
case "$(cat)" in *"git commit"*) echo "read only" >&2; exit 2 ;; esac
