import asyncio, json, random, sys, nats  # pip install nats-py

REPEAT = {"unavailable", "not_leader", "outcome_unknown", "overloaded"}

def union(ranges, through):  # in order and without overlaps, from `through` on
    disjoint = []
    for first, last in sorted(ranges):
        first = max(first, (disjoint[-1][1] if disjoint else through) + 1)
        if first <= last:
            disjoint.append([first, last])
    return disjoint

async def main(url, key):
    nc, me, look, shown = await nats.connect(url), {}, asyncio.Event(), None

    async def ask(op, **body):
        while True:  # repeated until the answer is known: with the same key or ticket the effect is one
            try:
                reply = await nc.request(f"nowserving.line.shop-1.{op}", json.dumps(body).encode(), timeout=2)
                answer = json.loads(reply.data)
                if answer.get("error", {}).get("code") not in REPEAT:
                    break
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                pass  # a leader has died; another one takes over within a second or so
            await asyncio.sleep(0.2)
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer

    def show(position, version, *forecast):  # only a new place
        nonlocal shown
        if position != shown:
            print("position", position, "at version", version, *forecast, flush=True)
        shown = position

    async def on_board(message):  # `me` is the newest status, with the version and the holes of the newest board
        board = json.loads(message.data)
        if board.get("undrawn"):  # nobody has a place until the draw at the opening is done
            me.pop("position", None)
            return
        if "position" not in me:
            return asyncio.get_running_loop().call_later(random.random() / 4, look.set)  # drawn: `status` knows
        if "holes" not in me or board["version"] <= me["version"]:
            return
        whole = board.get("whole", False)
        missed = board["prev_version"] > me["version"] and not whole
        lane = next((lane for lane in board["lanes"] if lane["lane"] == me["lane"]), {})
        if missed or board["incarnation"] != me["incarnation"] or "holes" not in lane:
            return look.set()  # `status` knows
        through, token = lane["admitted_through"], me["token"]
        holes = union(lane["holes"] + ([] if whole else me["holes"]), through)
        me.update(version=board["version"], holes=holes)
        if token <= through or any(first <= token <= last for first, last in holes):
            return look.set()  # waits no longer
        before = sum(last - first + 1 for first, last in holes if last < token)
        show(token - through - before, me["version"])

    await nc.subscribe("nowserving.event.shop-1.board", cb=on_board)  # before the first `status`
    ticket = (await ask("enter", key=key))["ticket"]  # repeated with the same key: the same number
    while True:
        look.clear()
        status = await ask("status", ticket=ticket, holes=True)  # also says that I am still here
        ticket = status.get("ticket", ticket)  # a new one after a move to another lane
        if status["state"] != "waiting":
            break
        if status["version"] >= me.get("version", 0):  # otherwise a board has overtaken it
            me = status
            show(me.get("position"), me["version"], "forecast", me["eta_ms"])
        try:
            await asyncio.wait_for(look.wait(), status["poll_after_ms"] / 1000)
        except asyncio.TimeoutError:
            pass
    if status["state"] == "admitted":
        epoch = (await ask("claim", ticket=ticket))["epoch"]
        status = await ask("complete", ticket=ticket, epoch=epoch)  # the checkout is done
    print(status["state"], status.get("reason"))
    await nc.close()

if len(sys.argv) != 3:
    print("usage: shopper.py NATS_URL KEY", file=sys.stderr)
    sys.exit(2)
asyncio.run(main(*sys.argv[1:]))
