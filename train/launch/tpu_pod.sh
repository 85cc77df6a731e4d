#!/usr/bin/env bash
# A run on a Cloud TPU pod slice: the same command in every worker, which find each other by themselves.
#
#   bash pod.sh create     make the slice and install on every worker
#   bash pod.sh train      start the run, or go on with it; it needs this machine no longer once started
#   bash pod.sh log        show what worker 0 says
#   bash pod.sh stop       save, and end the run
#   bash pod.sh delete     give the slice back
#
# It needs gcloud, signed in, and a folder that all workers share (Filestore or another NFS), with the checkout in it.
set -euo pipefail

# ---- Edit -------------------------------------------------------------------------------------------------------
PROJECT=my-project
ZONE=us-west4-a
NAME=oneblock
SLICE=v5litepod-256                       # 256 chips; python -m train plan --slice v5e:16x16 says what fits
RUNTIME=v2-alpha-tpuv5-lite               # the machine image that belongs to SLICE
SHARED=/mnt/shared                        # holds the checkout ($SHARED/oneblock), the shards, and the run
MOUNT="sudo mkdir -p $SHARED && sudo mount -t nfs 10.0.0.2:/share $SHARED"
TRIES=20                                  # how often a worker starts the run, where others were lost

read -r -d '' TRAIN <<'COMMAND' || true
python -m train pretrain /mnt/shared/runs/llama-7b --model llama-7b --data /mnt/shared/data/mine \
    --model-set dtype=bfloat16 scan=true remat=full \
    --driver mesh --mesh fsdp=-1 --batch-size 256 --seq-len 2048 \
    --steps 100000 --learning-rate 3e-4 --warmup-steps 2000 --checkpoint-every 500
COMMAND
# -----------------------------------------------------------------------------------------------------------------

PLACE=(--project "$PROJECT" --zone "$ZONE")
OURS=". ~/env/bin/activate && cd $SHARED/oneblock && export PYTHONDONTWRITEBYTECODE=1"
MOUNTED="mountpoint -q $SHARED || { $MOUNT; }"      # again after a machine's maintenance
STOPPED=$SHARED/runs/$NAME.stopped                  # why no worker is to try again

on_worker() {
    gcloud compute tpus tpu-vm ssh "$NAME" "${PLACE[@]}" --worker="$1" --command "$2"
}

case "${1:-}" in
    create)
        gcloud compute tpus tpu-vm create "$NAME" "${PLACE[@]}" --accelerator-type "$SLICE" --version "$RUNTIME"
        on_worker all "sudo apt-get update -q && sudo apt-get install -q -y nfs-common && { $MOUNTED; }"
        # The image's own Python is 3.10, too old: uv brings another. An environment a worker, of the packages alone:
        # the checkout is shared and is run where it lies, so that workers write nothing into it.
        on_worker all "curl -LsSf https://astral.sh/uv/install.sh | sh
            ~/.local/bin/uv venv -q --python 3.12 ~/env &&
            ~/.local/bin/uv pip install -q --python ~/env -r $SHARED/oneblock/pyproject.toml --extra tpu"
        on_worker all "mkdir -p $SHARED/runs && $OURS && python -m train doctor --run-folder $SHARED/runs"
        ;;
    train)
        # 75, 134, 137: a worker was lost; 143: one was told to stop, as before maintenance. All start again and go on
        # from the last checkpoint. Any other code (2 is wrong input) would come again: it is noted where all look.
        on_worker 0 "{ $MOUNTED; } && mkdir -p $SHARED/runs && rm -f $STOPPED"
        on_worker all "{ $MOUNTED; } && flock -n ~/oneblock.lock true || { echo \$(hostname) is at work; exit 0; }
            cat > ~/turns.sh <<'TURNS'
for try in \$(seq $TRIES); do
    code=0
    $TRAIN || code=\$?
    case \$code in
        0) exit 0 ;;
        75|134|137|143) sleep 30 ;;
        *) echo \$(hostname) ended with code \$code > $STOPPED ;;
    esac
    ls $SHARED/runs > /dev/null  # NFS looks again
    [ ! -e $STOPPED ] || { echo no further try: \$(cat $STOPPED); exit \$code; }
done
echo no further try: code \$code in the last of $TRIES; exit \$code
TURNS
            $OURS || exit 1
            setsid nohup flock -n -o ~/oneblock.lock bash ~/turns.sh \
                >> $SHARED/runs/$NAME.\$(hostname).log 2>&1 < /dev/null &"
        echo "started on every worker; bash $0 log shows worker 0, $SHARED/runs/$NAME.*.log holds what each says"
        ;;
    log)
        on_worker 0 "tail -n 50 -F $SHARED/runs/$NAME.\$(hostname).log"
        ;;
    stop)
        # One SIGTERM is agreed on by all: they finish the step and save.
        on_worker 0 "echo stopped by hand > $STOPPED; pkill -TERM -f '[p]ython -m train pretrain'"
        ;;
    delete)
        gcloud compute tpus tpu-vm delete "$NAME" "${PLACE[@]}" --quiet
        ;;
    *)
        echo "usage: bash $0 create|train|log|stop|delete" >&2
        exit 2
        ;;
esac
