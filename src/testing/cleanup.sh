# Outlives the process that started it, to stop its server and remove its files.
# $1: the server's folder; the data are in $1/data. Only that process can write to our stdin.
trap '' HUP INT TERM
folder=$1 data=$1/data

stop_server() {
    # Read now: the server may have been started again since we began.
    { read -r pid && read -r home; } <"$data/postmaster.pid" || return
    [ "$home" = "$data" ] || return
    # Should the server be gone without removing the file, the number may be another process's.
    if [ -r "/proc/$pid/cmdline" ]; then
        grep -qF -e "$data" "/proc/$pid/cmdline" || return
    fi
    kill -s QUIT "$pid" || return
    # Not until `kill -0` fails: a process that nobody waits for has a number for ever.
    tick=0
    while [ -e "$data/postmaster.pid" ] && kill -0 "$pid"; do
        tick=$((tick + 1))
        # It kills what does not obey after 5 s; 3 s more and we do the same to it.
        [ "$tick" -lt 80 ] || { kill -s KILL "$pid" && return; }
        pause
    done
}

pause() { sleep 0.1 || sleep 1; }

while read -r _; do :; done

# More than once: initdb or a starting server may still be writing. Gone is what stays gone.
round=0
while [ "$round" -lt 100 ]; do
    round=$((round + 1))
    stop_server
    rm -rf -- "$folder"
    pause
    [ -e "$folder" ] || exit 0
done
