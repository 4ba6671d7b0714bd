# bash completion of @NAME@
_@NAME@() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local verb=${COMP_WORDS[1]} offers='' files='' nothing=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W 'serve generate batch about verify doctor connect try import pack bundle install uninstall selftest synth logits bench --help --version' -- "$word"))
        return
    fi
    case "$verb ${COMP_WORDS[2]}" in
        'bench serve') verb='bench serve' ;;
        'bench decode') verb='bench decode' ;;
        'bench prefill') verb='bench prefill' ;;
        'bench drafts') verb='bench drafts' ;;
        'bench start') verb='bench start' ;;
    esac
    case "$verb $before" in
        'serve --host') nothing=1 ;;
        'serve --port') nothing=1 ;;
        'serve --socket') files=1 ;;
        'serve --api-keys-file') files=1 ;;
        'serve --tls-cert') files=1 ;;
        'serve --tls-key') files=1 ;;
        'serve --golden') files=1 ;;
        'serve --allow-host') nothing=1 ;;
        'serve --allow-origin') nothing=1 ;;
        'serve --access-log') files=1 ;;
        'serve --dump') files=1 ;;
        'serve --metrics-compat') nothing=1 ;;
        'serve --speculate') nothing=1 ;;
        'serve --cache-host') nothing=1 ;;
        'serve --cache-dir') files=1 ;;
        'serve --cache-disk') nothing=1 ;;
        'serve --cache-disk-daily') nothing=1 ;;
        'serve --warm') files=1 ;;
        'serve --model-name') nothing=1 ;;
        'serve --config') files=1 ;;
        'serve --notify-socket') files=1 ;;
        'serve --log-level') nothing=1 ;;
        'generate --weights') files=1 ;;
        'generate --max-tokens') nothing=1 ;;
        'generate --temperature') nothing=1 ;;
        'generate --seed') nothing=1 ;;
        'batch --weights') files=1 ;;
        'about --page') nothing=1 ;;
        'verify --golden') files=1 ;;
        'doctor --port') nothing=1 ;;
        'connect --url') nothing=1 ;;
        'connect --model') nothing=1 ;;
        'connect --key') nothing=1 ;;
        'try --url') nothing=1 ;;
        'try --key-file') files=1 ;;
        'import --public-key') files=1 ;;
        'bundle --weights') files=1 ;;
        'install --public-key') files=1 ;;
        'install --root') files=1 ;;
        'uninstall --root') files=1 ;;
        'selftest --layers') nothing=1 ;;
        'selftest --op') nothing=1 ;;
        'selftest --seed') nothing=1 ;;
        'selftest --drafts') nothing=1 ;;
        'selftest --weights') files=1 ;;
        'synth --layers') nothing=1 ;;
        'logits --tokens') files=1 ;;
        'logits --out') files=1 ;;
        'logits --routers') files=1 ;;
        'logits --layers') nothing=1 ;;
        'bench serve --url') nothing=1 ;;
        'bench serve --scenario') nothing=1 ;;
        'bench serve --streams') nothing=1 ;;
        'bench serve --requests') nothing=1 ;;
        'bench serve --prompt-tokens') nothing=1 ;;
        'bench serve --max-tokens') nothing=1 ;;
        'bench serve --model') nothing=1 ;;
        'bench serve --key-file') files=1 ;;
        'bench serve --pid') nothing=1 ;;
        'bench serve --json') nothing=1 ;;
        'bench decode --weights') files=1 ;;
        'bench decode --layers') nothing=1 ;;
        'bench decode --json') nothing=1 ;;
        'bench prefill --weights') files=1 ;;
        'bench prefill --layers') nothing=1 ;;
        'bench prefill --tokens') nothing=1 ;;
        'bench prefill --json') nothing=1 ;;
        'bench drafts --weights') files=1 ;;
        'bench drafts --layers') nothing=1 ;;
        'bench drafts --acceptance') nothing=1 ;;
        'bench drafts --context') nothing=1 ;;
        'bench drafts --json') nothing=1 ;;
        'bench start --runs') nothing=1 ;;
        'bench start --json') nothing=1 ;;
    esac
    [[ $nothing ]] && return
    case "$verb" in
        'serve') offers='--help --host --port --socket --api-keys-file --without-keys --tls-cert --tls-key --golden --allow-host --allow-origin --access-log --dump --metrics-compat --speculate --cache-host --cache-dir --cache-disk --cache-disk-daily --warm --model-name --config --print-config --notify-socket --log-level' ;;
        'generate') offers='--help --weights --max-tokens --temperature --seed' ;;
        'batch') offers='--help --weights' ;;
        'about') offers='--help --json --licences --public-key --page' ;;
        'verify') offers='--help --full --digests --oracle --golden' ;;
        'doctor') offers='--help --port' ;;
        'connect') offers='--help --url --model --key --run --check' ;;
        'try') offers='--help --url --key-file' ;;
        'import') offers='--help --public-key --link' ;;
        'pack') offers='--help' ;;
        'bundle') offers='--help --weights --parts' ;;
        'install') offers='--help --public-key --root' ;;
        'uninstall') offers='--help --root' ;;
        'selftest') offers='--help --bits --layers --op --all --seed --drafts --weights' ;;
        'synth') offers='--help --layers' ;;
        'logits') offers='--help --tokens --out --routers --layers --decode' ;;
        'bench') offers='serve decode prefill drafts start --help' ;;
        'bench serve') offers='--help --url --scenario --large --streams --requests --prompt-tokens --max-tokens --model --key-file --pid --json' ;;
        'bench decode') offers='--help --weights --layers --json' ;;
        'bench prefill') offers='--help --weights --layers --tokens --json' ;;
        'bench drafts') offers='--help --weights --layers --acceptance --context --json' ;;
        'bench start') offers='--help --runs --json' ;;
    esac
    if [[ $files || $word != -* ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$word"))
    fi
    [[ $files ]] || COMPREPLY+=($(compgen -W "$offers" -- "$word"))
}
complete -F _@NAME@ @NAME@
