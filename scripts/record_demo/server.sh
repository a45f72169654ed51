#!/usr/bin/env bash
# server.sh VENV MODEL PORT KV_PORT BLOCKS [vLLM options...]: the toy model on vLLM's CPU backend, on loopback only.
# SCHEDULER and PLUGINS (its folder) name another scheduler than the recording one; GAPSCOPE_* go to it as they are.
set -euo pipefail
venv=$1 model=$2 port=$3 kv_port=$4 blocks=$5
shift 5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
last=$(($(nproc) - 1))

# The OpenMP runtime that the build wants; without it the first pass stops with a message that says so.
[ -e "$venv/lib/libiomp5.so" ] && export LD_PRELOAD="$venv/lib/libiomp5.so"
export PYTHONPATH=${PLUGINS:-$here/../../engine/recording/server}
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_HOST_IP=127.0.0.1 VLLM_LOOPBACK_IP=127.0.0.1 GLOO_SOCKET_IFNAME=lo
# One thread on the last processor for the forward pass; the development endpoints have the reset of the prefix cache;
# request ids as the client sent them, so that its rows and the passes join.
export VLLM_CPU_OMP_THREADS_BIND=$last VLLM_SERVER_DEV_MODE=1 VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 PYTHONHASHSEED=0

scheduler=(--scheduler-cls "${SCHEDULER-vllm_scheduler.RecordingScheduler}")
[ -z "${SCHEDULER-x}" ] && scheduler=()
# The `vllm` command looks for a package of that name; this build has another, so its module is started.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name toy-llama \
    --host 127.0.0.1 --port "$port" --load-format dummy --dtype float32 --seed 0 --enforce-eager \
    --max-model-len 12288 --block-size 32 --num-gpu-blocks-override "$blocks" --kv-cache-memory-bytes 1G \
    --max-num-seqs 16 --max-num-batched-tokens 512 --enable-chunked-prefill --enable-prefix-caching \
    --prefix-caching-hash-algo sha256_cbor --no-async-scheduling "${scheduler[@]}" \
    --kv-events-config "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://127.0.0.1:$kv_port\",\"topic\":\"kv\"}" \
    --enable-prompt-tokens-details --disable-uvicorn-access-log "$@"
