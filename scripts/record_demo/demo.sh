#!/usr/bin/env bash
# demo.sh GAPSCOPE_BIN: a server of a toy model, two minutes of load on it, and the check of the recording.
# Variables: WORK, NAME, LANES, WARMUP, DURATION, BLOCKS, STORE, VLLM_PORT, KV_PORT; VLLM_VENV (vLLM installed already),
# OPTIONS (more of vLLM's). A tight pool: BLOCKS=224 OPTIONS='--max-model-len 6144' NAME=recorded-tight8.
set -euo pipefail
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${WORK:=build/record-demo}"
work=$(cd "$WORK" && pwd)
: "${NAME:=recorded-ample8}" "${LANES:=8}" "${WARMUP:=20}" "${DURATION:=150}" "${BLOCKS:=4096}"
: "${STORE:=$work/store}" "${VLLM_PORT:=8123}" "${KV_PORT:=5557}" "${VLLM_VENV:=$work/venv}" "${OPTIONS:=}"
last=$(($(nproc) - 1))

[ "$VLLM_VENV" != "$work/venv" ] || "$here/install.sh" "$VLLM_VENV"
[ -e "$work/toy-llama/config.json" ] || "$VLLM_VENV/bin/python" "$here/toy_model.py" "$work/toy-llama"
[ -e "$work/trace.jsonl" ] || "$VLLM_VENV/bin/python" "$here/toy_trace.py" "$work/trace.jsonl"

run=$work/$NAME
rm -rf "$run"
mkdir -p "$run"
export GAPSCOPE_RECORD=$run/rows
# shellcheck disable=SC2086  # OPTIONS is a list of words
setsid "$here/server.sh" "$VLLM_VENV" "$work/toy-llama" "$VLLM_PORT" "$KV_PORT" "$BLOCKS" $OPTIONS > "$run/server.log" 2>&1 &
server=$!
stop() {
    kill -TERM "$server" 2>/dev/null || true
    for _ in $(seq 60); do kill -0 "$server" 2>/dev/null || break; sleep 0.5; done
    kill -KILL -- "-$server" 2>/dev/null || true
}
trap stop EXIT
echo "record-demo: the server starts (one to three minutes); its log is $run/server.log" >&2
for n in $(seq 600); do
    sleep 1
    curl -sf "http://127.0.0.1:$VLLM_PORT/health" > /dev/null && break
    kill -0 "$server" 2>/dev/null || { tail -20 "$run/server.log" >&2; echo "record-demo: the server ended" >&2; exit 1; }
    [ "$n" -lt 600 ] || { echo "record-demo: the server did not come up in ten minutes" >&2; exit 1; }
done
# The forward pass has the last processor to itself: everything else goes to the others.
if [ "$last" -gt 0 ]; then
    taskset -acp "0-$((last - 1))" "$server" > /dev/null
    for child in $(pgrep -P "$server"); do
        grep -q EngineCor "/proc/$child/comm" && taskset -acp "0-$((last - 1))" "$child" > /dev/null
    done
    taskset -cp "0-$((last - 1))" $$ > /dev/null
fi

echo "record-demo: $LANES lanes, $WARMUP s of warm-up, $DURATION s of profile" >&2
id=$("$bin/gapscope" record --url "http://127.0.0.1:$VLLM_PORT" --trace "$work/trace.jsonl" --name "$NAME" \
    --lanes "$LANES" --warmup "$WARMUP" --duration "$DURATION" --grace 0.4 --stagger 0.25 \
    --rows "$GAPSCOPE_RECORD" --kv-events "tcp://127.0.0.1:$KV_PORT" --bind --store "$STORE")
stop
trap - EXIT
echo "$id"
"$bin/gapscope" record check "$id" --store "$STORE"
