#!/usr/bin/env bash
# A run on a Cloud TPU pod slice: the same command in every worker, which find each other by themselves.
#
#   bash pod.sh create     make the slice and install on every worker
#   bash pod.sh train      start the run, or go on with it
#   bash pod.sh delete     give the slice back
#
# It needs gcloud, signed in, and a folder that all workers share (Filestore or another NFS), mounted at $SHARED.
set -euo pipefail

# ---- Edit -------------------------------------------------------------------------------------------------------
PROJECT=my-project
ZONE=us-west4-a
NAME=oneblock
SLICE=v5litepod-256                       # 256 chips; python -m train plan --slice v5e:16x16 says what fits
RUNTIME=v2-alpha-tpuv5-lite               # the machine image that belongs to SLICE
SHARED=/mnt/shared                        # holds the checkout, the shards, and the run
MOUNT="sudo mkdir -p $SHARED && sudo mount -t nfs 10.0.0.2:/share $SHARED"
TRIES=20                                  # how often a run that lost a worker is started again

read -r -d '' TRAIN <<'COMMAND' || true
python -m train pretrain /mnt/shared/runs/llama-7b --model llama-7b --data /mnt/shared/data/mine \
    --model-set dtype=bfloat16 scan=true remat=full \
    --driver mesh --mesh fsdp=-1 --batch-size 256 --seq-len 2048 \
    --steps 100000 --learning-rate 3e-4 --warmup-steps 2000 --checkpoint-every 500
COMMAND
# -----------------------------------------------------------------------------------------------------------------

PLACE=(--project "$PROJECT" --zone "$ZONE")

on_every_worker() {
    gcloud compute tpus tpu-vm ssh "$NAME" "${PLACE[@]}" --worker=all --command "$1"
}

case "${1:-}" in
    create)
        gcloud compute tpus tpu-vm create "$NAME" "${PLACE[@]}" --accelerator-type "$SLICE" --version "$RUNTIME"
        on_every_worker "mountpoint -q $SHARED || { $MOUNT; }"
        # An environment a worker: the checkout is shared, the packages are not.
        on_every_worker "python3 -m venv ~/env && ~/env/bin/pip install -q -e '$SHARED/oneblock[tpu]'"
        on_every_worker ". ~/env/bin/activate && python -m train doctor --run-folder $SHARED/runs"
        ;;
    train)
        # Codes 75, 134 and 137 say that a worker was lost: all start again, and go on from the last checkpoint.
        # 143 (SIGTERM) has saved; 2 is wrong input. Progress is that of worker 0.
        on_every_worker "
            . ~/env/bin/activate
            for try in \$(seq $TRIES); do
                code=0
                $TRAIN || code=\$?
                case \$code in 75|134|137) sleep 30 ;; *) exit \$code ;; esac
            done
            exit \$code"
        ;;
    delete)
        gcloud compute tpus tpu-vm delete "$NAME" "${PLACE[@]}" --quiet
        ;;
    *)
        echo "usage: bash $0 create|train|delete" >&2
        exit 2
        ;;
esac
