"""The worker process: answers an agent's requests, one at a time, until its stdin ends.

Requests are JSON lines on stdin, answers JSON lines on file descriptor 3; stdout goes where stderr goes.
"""

import os

# Before anything can print: NCCL, cuDNN and stray prints write to stdout and would corrupt frames.
os.dup2(2, 1)

import resource  # noqa: E402
import sys  # noqa: E402

import errors  # noqa: E402
import vectors  # noqa: E402
import wire  # noqa: E402


def main() -> None:
    """Serves, or with the argument `relay` carries messages between agents."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.argv[1:2] == ["relay"]:
        import relay

        relay.run(sys.argv[2:])
        return
    try:
        os.set_inheritable(3, False)
    except OSError:
        sys.exit(
            "file descriptor 3 is closed: a worker is started by evenkeel, which reads its answers there"
        )
    heart = wire.Heart()
    heart.start()
    try:
        _serve(heart)
    except errors.Failure as failure:  # a broken stream of requests, which no answer can name
        wire.send({"t": "error", "id": 0, "class": failure.cls, "msg": failure.msg, "fatal": True})
        os._exit(errors.EXIT_PROTOCOL)
    except BrokenPipeError:
        pass  # the agent is gone
    os._exit(0)


def _serve(heart: wire.Heart) -> None:
    service = None
    for request in wire.requests():
        number = request.get("id")
        number = number if isinstance(number, int) else 0
        if request.get("t") == "bye":
            if service is not None:
                service.leave()
            os._exit(0)
        heart.begin(number, str(request.get("t")))
        try:
            service = service or _service(heart, request)
            answer = service.answer(request)
            heart.end()
            wire.send({"t": "hello" if request.get("t") == "hello" else "result", "id": number, **answer})
        except BrokenPipeError:
            raise
        except Exception as exc:
            heart.end()
            failure = errors.classify(exc)
            if service is not None and not failure.fatal:
                exc.__traceback__ = None  # its frames hold tensors
                service.recover(failure)
            _report(number, failure)


def _quiet_threads(threads: object) -> None:
    """Settings that libraries under torch read once, when they are loaded.

    OpenBLAS has a pool of its own, which torch.set_num_threads does not reach. Two pools that take turns must
    not spin while the other works: on 2 cores an attention of 14 ms took between 24 and 68, and waited half
    of that for a core. OpenBLAS's threads wait 2^10 cycles instead of 2^26.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
    if isinstance(threads, int) and threads > 0:
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)


def _service(heart: wire.Heart, request: dict):
    """The service, whose import needs torch; without torch the worker says so and leaves."""
    _quiet_threads(request.get("threads"))
    try:
        vectors.keep_to(request.get("own_cores"))  # before libraries start their pools
    except (ValueError, OSError) as exc:
        raise errors.Failure("unsupported", str(exc), fatal=True) from exc
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as exc:  # OSError: a library that torch links to is missing
        python = f"{sys.executable} (python {sys.version.split()[0]})"
        why = f"torch does not load in {python}: {exc}"
        if getattr(exc, "name", "") == "torch":
            why = f"no module torch in {python}"
        heart.end()
        number = request.get("id", 0)
        wire.send({"t": "error", "id": number, "class": "unsupported", "msg": why, "fatal": True})
        os._exit(errors.EXIT_NO_TORCH)
    from service import Service

    return Service(heart)


def _report(number: int, failure: errors.Failure) -> None:
    """Answers with a failure, and leaves if the process can do nothing more."""
    frame = {
        "t": "error", "id": number, "class": failure.cls, "msg": failure.msg[:2000], "fatal": failure.fatal
    }
    wire.send(frame)
    if failure.fatal:
        os._exit(errors.exit_status(failure))


if __name__ == "__main__":
    main()
