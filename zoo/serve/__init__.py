"""An HTTP endpoint in the manner of OpenAI's, over one model: `python -m zoo serve` (extra `serve`).

    request -> fields, checked (asked) -> ids -> rows in the queue (engine) -> batches that take turns (lanes)
            -> pieces of text (speech) -> JSON or server-sent events (answers)

The event loop reads and writes; one thread owns the device. Nothing but queues goes between them.
"""
