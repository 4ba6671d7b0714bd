#compdef @NAME@

_atlas_verbs() {
    local -a verbs=(
        serve:'serve the model over HTTP'
        generate:'answer one prompt on standard output; what the model thinks before goes to standard error'
        batch:'answer a file of requests into another file, without a server'
        about:'print the target, its limits and its manifest'
        verify:'check the weights against the manifest in this binary'
        doctor:'check this machine\: GPU, memory, disk, limits, port, weights; a line each, ok or what to fix'
        connect:'print the settings of a client for this server, or start it with them'
        try:'ask a running server'
        import:'copy weights to where they are served from, verifying them; goes on where an earlier run stopped'
        pack:'write the weights as the kernels of this binary read them, into one file that `serve FILE` starts from without repacking; an interrupted run is begun anew by the same command'
        bundle:'write a folder that installs this model on a machine without a network'
        install:'install a bundle as a service of this machine'
        uninstall:'remove what `install` installed'
        selftest:'compare operations with their reference\: norms, products and attention of the CPU, far into a context, with their formulas, and every operation of the GPU, if this binary has one, with the CPU’s'
        synth:'write a checkpoint of the model’s exact tensors with drawn numbers, to measure and compare with'
        logits:'write the logits of every position of a text, to compare with another implementation'
        bench:'measure a running server, or the model’s steps and start on this machine'
    )
    _describe verb verbs
}

_arguments -C '1:verb:_atlas_verbs' '*::argument:->rest'

case $words[1] in
    serve)
        _arguments '--help[display usage information]' '--host[address to listen on (default 127.0.0.1\: this machine only)]:host:' '--port[port to listen on (default 8000; 0 takes a free one)]:port:' '--socket[socket to make in the file system and listen on instead, for the server’s user and group]:socket:_files' '--api-keys-file[file of API keys, one a line, that every request but those for /health must bring one of, a browser as the password of any name; SIGHUP reads it again (default\: none, which an address that other machines reach is refused with)]:api-keys-file:_files' '--without-keys[serve whoever can connect at an address that other machines reach]' '--tls-cert[file of certificates, the server’s own first, in PEM\: the port speaks TLS; needs --tls-key and a binary built with TLS; SIGHUP reads both files again]:tls-cert:_files' '--tls-key[file of that certificate’s private key, in PEM]:tls-key:_files' '--golden[file of golden tokens that the model is checked with before it serves; `verify --oracle --golden FILE` writes one (default\: none)]:golden:_files' '--allow-host[name that requests may reach the server by, beside localhost and any address (repeated; * is any name, and the default unless --host is of this machine only)]:allow-host:' '--allow-origin[origin of web pages that may use the server beside its own, as in https\://chat.example (repeated; * is any page; default\: none)]:allow-origin:' '--access-log[file that gets a line of JSON about each request, without its texts; - is standard output (default\: none)]:access-log:_files' '--dump[file to which requests and their answers are appended, with all their texts, for scripts/replay.py; - is standard output (default\: none)]:dump:_files' '--metrics-compat[vllm\: /metrics tells figures under the names of that server too, for dashboards made for it (default\: only its own names)]:metrics-compat:' '--speculate[drafts of each reply that are tried in a step\: off, auto, which is as many as pay, or 1 to 7 in every step, to measure; no answer depends on it (default auto)]:speculate:' '--cache-host[host memory, as in 32GB, for prompts that the device’s memory has no place for\: they come back from there and are not computed again (default\: none)]:cache-host:' '--cache-dir[directory for prompts that memory has no place for, which outlast the server\: the same program with the same weights finds them there, each for the key that it came with; needs --cache-disk (default\: none)]:cache-dir:_files' '--cache-disk[room in that directory, as in 200GB]:cache-disk:' '--cache-disk-daily[bytes that are written there in a day, at most (default\: as many as --cache-disk)]:cache-disk-daily:' '--warm[file of conversations that are computed before the server is ready, for all keys, so that prompts which begin as they do have less to compute; a line of JSON each, as the body of a request to /v1/chat/completions (default\: none)]:warm:_files' '--model-name[model id that the API reports and answers to]:model-name:' '--config[file of settings in TOML, under the names of these flags, which count before it (default\: none)]:config:_files' '--print-config[print all settings, as a file of them, and where each comes from]' '--notify-socket[socket that is told how loading goes, when the server is ready and that it lives, in the protocol of systemd; a unit writes the variable NOTIFY_SOCKET (default\: none)]:notify-socket:_files' '--log-level[info, or debug to name the unknown fields of requests too (default info)]:log-level:' '*:file:_files'
        ;;
    generate)
        _arguments '--help[display usage information]' '--weights[directory that holds the weights, or packed file; none for a model inside the binary]:weights:_files' '--max-tokens[tokens to generate at most (default\: what fits)]:max-tokens:' '--temperature[randomness from 0 to 2; 0 always takes the most likely token (default\: the model’s)]:temperature:' '--seed[seed of the choice of tokens (default 0)]:seed:' '*:file:_files'
        ;;
    batch)
        _arguments '--help[display usage information]' '--weights[directory that holds the weights; none for a model inside the binary]:weights:_files' '*:file:_files'
        ;;
    about)
        _arguments '--help[display usage information]' '--json[print JSON]' '--licences[print the licences of all that is in this binary]' '--public-key[print the key that releases are signed with, as a file for minisign]' '--page[print the manual page, or the completions of a shell\: man, bash, zsh, fish]:page:' '*:file:_files'
        ;;
    verify)
        _arguments '--help[display usage information]' '--full[read every byte and compare digests with the manifest’s, or with those that the download left beside the files; of a packed file, with those that were written]' '--digests[read every byte and print names, sizes and SHA-256 as a model’s manifest states them; check nothing else]' '--oracle[compare every layer with the CPU’s operations over the same weights, on a text\: takes minutes for a large model]' '--golden[file to write\: tokens that the model gives now, for later starts to compare with, as `serve --golden FILE` does; with --oracle, which must pass first]:golden:_files' '*:file:_files'
        ;;
    doctor)
        _arguments '--help[display usage information]' '--port[port to be served on (default 8000)]:port:' '*:file:_files'
        ;;
    connect)
        _arguments '--help[display usage information]' '--url[address of the server (default http\://127.0.0.1\:8000)]:url:' '--model[model id that the server reports (default\: that of this binary)]:model:' '--key[API key, where the server asks for one (default\: none)]:key:' '--run[start the client with the settings; its arguments follow --]' '--check[send what the client sends first to the server, and say what comes]' '*:file:_files'
        ;;
    try)
        _arguments '--help[display usage information]' '--url[address of the server (default http\://127.0.0.1\:8000)]:url:' '--key-file[file that holds the API key]:key-file:_files' '*:file:_files'
        ;;
    import)
        _arguments '--help[display usage information]' '--public-key[file of the minisign public key that a bundle must be signed with]:public-key:_files' '--link[link the files of a directory instead of copying them, where both are on one disk]' '*:file:_files'
        ;;
    pack)
        _arguments '--help[display usage information]' '*:file:_files'
        ;;
    bundle)
        _arguments '--help[display usage information]' '--weights[directory that holds the weights, or packed file; none for a model inside the binary]:weights:_files' '--parts[cut files into parts of less than 4 GiB, for media that take no larger ones]' '*:file:_files'
        ;;
    install)
        _arguments '--help[display usage information]' '--public-key[file of the minisign public key that it must be signed with (default\: no signature is asked for, and every file is compared with the bundle’s own list)]:public-key:_files' '--root[directory that stands for / (default /)]:root:_files' '*:file:_files'
        ;;
    uninstall)
        _arguments '--help[display usage information]' '--root[directory that stands for / (default /)]:root:_files' '*:file:_files'
        ;;
    selftest)
        _arguments '--help[display usage information]' '--bits[run the whole model with drawn weights instead, and count the rows of logits that differ between a sequence alone and in every batch, recorded and eager steps, a prompt whole and in chunks; ends with a digest of them all, by which two builds can be compared]' '--layers[layers of the model for --bits; by default all]:layers:' '--op[compare this operation alone]:op:' '--all[compare every row of operations on many rows, which takes the CPU minutes; by default one of each eight, and those at the edges of tiles]' '--seed[draw the inputs of this seed, to see a failure again; by default from the clock]:seed:' '--drafts[count instead how many first drafts of the drafting layer equal the token that a server served, over the replies of this file\: a JSON object per line, with the token ids prompt_tokens and reply_tokens (scripts/tiny_eval.py --served writes one)]:drafts:' '--weights[directory that holds the weights, for --drafts; none for a model inside the binary]:weights:_files' '*:file:_files'
        ;;
    synth)
        _arguments '--help[display usage information]' '--layers[keep the first layers only, at full width]:layers:' '*:file:_files'
        ;;
    logits)
        _arguments '--help[display usage information]' '--tokens[file of token ids, with spaces or line ends between them]:tokens:_files' '--out[file to write\: 32-bit floats, little-endian, a row of the vocabulary for each token]:out:_files' '--routers[file to write beside it\: for each token the logits of every layer’s router, the shared expert’s gate last. They decide the experts\: the largest, the lower index on a tie]:routers:_files' '--layers[how many layers the weights have (default\: all)]:layers:' '--decode[feed one token at a time, as when a reply is generated]' '*:file:_files'
        ;;
    bench)
        _arguments '1:verb:(serve decode prefill drafts start)' '--acceptance[share of drafts that is supposed to hold, each behind those that held, from 0 to 1 (may be repeated; default 0.85, 0.75 and 0.6)]:acceptance:' '--context[tokens of each reply before the step (default 1024, or half of a context that is short)]:context:' '--help[display usage information]' '--json[write the figures as JSON to this file, or to standard output if it is -]:json:' '--json[write the figures as JSON to this file]:json:' '--key-file[file that holds the API key]:key-file:_files' '--large[run the scenarios for a model of real size instead\: first tokens of 128, 1,024 and 8,192, and 1, 8, 32 and 64 streams; tells how to measure a peer the same way]' '--layers[measure the first layers only, and the prediction layer]:layers:' '--layers[measure the first layers only]:layers:' '--max-tokens[tokens per reply]:max-tokens:' '--model[model id to ask for; the first one that the server lists if not given]:model:' '--pid[process id of the server, to report its memory]:pid:' '--prompt-tokens[tokens per prompt, with the chat template]:prompt-tokens:' '--requests[replies to measure]:requests:' '--runs[processes to start, one after the other; the medians count (default 3). 1 measures this process, from where it has read its command line]:runs:' '--scenario[run only this scenario\: decode-1, decode-8 or prefill-200, or one of --large (may be repeated)]:scenario:' '--streams[replies at once; this and the next three make a scenario of their own]:streams:' '--tokens[measure prompts of so many tokens only]:tokens:' '--url[address of the server, such as http\://127.0.0.1\:8000]:url:' '--weights[directory of the weights, any of the target’s tensors; drawn ones if not given]:weights:_files' '*:file:_files'
        ;;
esac
