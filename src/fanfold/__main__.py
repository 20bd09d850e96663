"""`python -m fanfold`: the command line, only if Python does not import from the current folder.

`python -m` puts the current folder first on the import path, so a module of a hostile checkout could replace
a module that Fanfold imports. `python -P -m fanfold` and the `fanfold` program do not.
"""

import sys

if not sys.flags.safe_path:
    sys.stderr.write(
        "error[usage.unsafe_path]: python -m imports modules from the current folder first\n"
        "  hint: use the fanfold program, or python -P -m fanfold\n"
    )
    sys.exit(2)

from fanfold.cli.main import main

sys.exit(main())
