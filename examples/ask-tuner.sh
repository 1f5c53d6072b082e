#!/usr/bin/env bash
# Asks a tuner service for settings, and gives up in time: a job must start without it too.
#
#   ask-tuner.sh submit QUESTION.json                        ask, and do not wait
#   ask-tuner.sh answer QUESTION.json FORMAT FILE SECONDS    ask, wait, and write the answer to FILE
#
# QUESTION.json is the body of POST /tune, FORMAT one of tuner's exports (env, accelerate, ...).
# TUNER_URL is the service. Its key is read from the file TUNER_KEY_FILE, or else from TUNER_KEY;
# it stands on no command line, where others of the machine could read it.
#
# Exit code 0: done, and FILE is whole. 1: there is no answer, with the reason on stderr, and FILE
# is as it was. 2: called wrongly. Needs bash, curl 7.55 or newer, and python3.
set -euo pipefail

CONNECT_S=5  # to a service that is down
ANSWER_S=20  # for a request that does not wait
WRITTEN_BY='[Ww]ritten[ _]by(": ")? ?tuner|"run_name": "tuner '  # in every file of tuner's

die() {
    echo "ask-tuner: $2" >&2
    exit "$1"
}

usage() {
    die 2 "usage: ask-tuner.sh submit QUESTION | ask-tuner.sh answer QUESTION FORMAT FILE SECONDS"
}

# A field of the JSON object on stdin, by its path; empty where it is not there.
field() {
    python3 -c '
import json, sys
try:
    value = json.load(sys.stdin)
    for name in sys.argv[1].split("."):
        value = value.get(name) if isinstance(value, dict) else None
except ValueError:
    value = None
print("" if value is None else " ".join(str(value).split()))' "$1"
}

# request SECONDS METHOD PATH [curl's options]: the answer goes to $scratch/body, its status to
# $status; 000 where there was none, or not the whole of one. The key goes to curl by stdin.
request() {
    local seconds=$1 method=$2 path=$3 header=""
    shift 3
    : >"$scratch/body"  # or the last answer would stay where this one is empty
    [[ -z $key ]] || header="header = \"Authorization: Bearer $key\""
    status=$(printf '%s\n' "$header" | curl --config - --silent --output "$scratch/body" \
        --write-out '%{http_code}' --proto '=http,https' --connect-timeout "$CONNECT_S" \
        --max-time "$seconds" --request "$method" "$@" --url "${url}${path}") || status=000
    [[ $status =~ ^[0-9]{3}$ ]] || status=000
}

# Ends with what the service says is wrong.
refused() {
    case $status in
        000) die 1 "$url does not answer" ;;
        401 | 403) die 1 "$url refused the key (status $status): $(field detail <"$scratch/body")" ;;
        *) die 1 "$url refused (status $status): $(field detail <"$scratch/body")" ;;
    esac
}

left() {
    echo $((until - SECONDS))
}

# Seconds for a request that does not wait: what is left of the time, and a second at least.
briefly() {
    local most
    most=$(left)
    ((most < ANSWER_S)) || most=$ANSWER_S
    ((most > 0)) || most=1
    echo "$most"
}

# Asks; a request that is sent again asks once. Sets $study and $terms.
ask() {
    local once
    once=$(python3 -c 'import uuid; print(uuid.uuid4().hex)')
    while true; do
        request "$(briefly)" POST "/tune?view=brief" --header "Content-Type: application/json" \
            --header "Idempotency-Key: $once" --data-binary "@$question"
        case $status in
            2*) break ;;
            000 | 429 | 502 | 503 | 504) (($(left) > 2)) || refused ;;
            *) refused ;;
        esac
        sleep 1
    done
    study=$(field study_id <"$scratch/body")
    terms=$(field terms_id <"$scratch/body")
    [[ $study =~ ^st-[0-9a-f]+$ && $terms =~ ^[0-9a-f]+$ ]] || die 1 "$url is no tuner service"
}

# Waits for the study's end.
wait_for_end() {
    local state wait
    while true; do
        wait=$(left)
        ((wait > 0)) || die 1 "study $study has no answer after $seconds s; it goes on"
        ((wait < 30)) || wait=30
        request $((wait + CONNECT_S)) GET "/tune/$study?wait=$wait&terms=$terms"
        case $status in
            200) ;;
            000 | 429 | 502 | 503 | 504) sleep 1 && continue ;;
            *) refused ;;
        esac
        state=$(field state <"$scratch/body")
        case $state in
            queued | running) ;;
            "") sleep 1 ;;  # something between here and the service has answered in its place
            *) break ;;
        esac
    done
    local why
    why=$(field no_answer.message <"$scratch/body")
    [[ -z $why ]] || die 1 "study $study: $why"
}

# Writes the answer, at once or not at all.
write_answer() {
    while true; do
        request "$(briefly)" GET "/tune/$study/export/$format?terms=$terms"
        case $status in
            200) break ;;
            000 | 429 | 502 | 503 | 504) (($(left) > 0)) || refused ;;
            *) refused ;;
        esac
        sleep 1
    done
    # a job may read it as a shell does: what a proxy says in the service's place is not to be run
    grep -Eq "$WRITTEN_BY" "$scratch/body" || die 1 "what $url has sent is no file of tuner's"
    if ! { cp -- "$scratch/body" "$file.$$" && mv -- "$file.$$" "$file"; } 2>"$scratch/why"; then
        rm -f -- "$file.$$"
        die 1 "$file cannot be written: $(<"$scratch/why")"
    fi
    echo "ask-tuner: study $study is answered; its settings are in $file" >&2
}

[[ $# -ge 2 ]] || usage
command=$1 question=$2 format="" file="" seconds=$ANSWER_S
case $command:$# in
    submit:2) ;;
    answer:5) format=$3 file=$4 seconds=$5 ;;
    *) usage ;;
esac
[[ $seconds =~ ^[1-9][0-9]{0,5}$ ]] || die 2 "SECONDS must be a positive whole number"
[[ -z $format || $format =~ ^[a-z-]+$ ]] || die 2 "FORMAT must be the name of one"
[[ -f $question && -r $question ]] || die 2 "there is no file $question that can be read"
[[ -n ${TUNER_URL:-} ]] || die 2 "TUNER_URL must be the URL of the service"
for program in curl python3; do
    command -v "$program" >/dev/null || die 1 "there is no $program here to ask with"
done
url=${TUNER_URL%/} key=${TUNER_KEY:-} status=000
unset TUNER_KEY  # of no use to what is started here
if [[ -n ${TUNER_KEY_FILE:-} ]]; then
    [[ -r $TUNER_KEY_FILE ]] || die 1 "the key's file $TUNER_KEY_FILE cannot be read"
    key=$(<"$TUNER_KEY_FILE")
fi
[[ -z $key || $key =~ ^[A-Za-z0-9._~+/=-]+$ ]] || die 1 "the key is none: it must be one word"

scratch=$(mktemp -d)  # of nobody else
trap 'rm -rf "$scratch"' EXIT
until=$((SECONDS + seconds))
ask
if [[ $command == submit ]]; then
    echo "ask-tuner: study $study is asked" >&2
    exit 0
fi
wait_for_end
write_answer
