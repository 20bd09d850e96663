function __fanfold
    set -l found (fanfold completion fish --words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c fanfold -f -a '(__fanfold)'
