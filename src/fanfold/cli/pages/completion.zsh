#compdef fanfold
_fanfold() {
    local -a found
    found=("${(@f)$(fanfold completion zsh --words -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z "${found[1]}" ]]; then
        _files
    elif [[ "${found[1]}" == *= ]]; then
        compadd -S '' -a found
    else
        compadd -a found
    fi
}
if [[ "${funcstack[1]}" == _fanfold ]]; then
    _fanfold "$@"
else
    compdef _fanfold fanfold
fi
