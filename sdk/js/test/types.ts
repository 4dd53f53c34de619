// What a caller in TypeScript writes. Compiled, not run.

import { connect } from "@nats-io/transport-node";
import type { CheckReply, State } from "nowserving";
import { Client, Guard, NowservingError, PlacesFromEvents } from "nowserving";

const nc = await connect({ servers: "nats://127.0.0.1:4222" });
const client = new Client(nc, { deadlineMs: 5_000 });
const line = client.line("shop-1");

const { ticket } = await line.enter("order-1001", { lane: "vip" });
const ofString: string = ticket;
for await (const place of line.track(ofString, { onError: (error) => console.log(error.code) })) {
  const state: State = place.state;
  const position: number | undefined = place.position;
  console.log(state, position, place.eta_ms);
  if (place.state === "admitted") {
    const { epoch } = await line.claim(ticket);
    await line.complete(ticket, epoch, { units: 1 });
    break;
  }
}

const reply: CheckReply = await client.limiter("shop", { onUnavailable: "deny" }).check([{ remote_address: "127.0.0.1" }]);
console.log(reply.retry_after_ms);
const waited: CheckReply | undefined = await client
  .limiter("shop")
  .waitUntilAllowed([[{ key: "a", value: "b" }]], { withinMs: 1_000 });
console.log(waited);

const guard = new Guard(line, { maxWaitMs: 1_000 });
const answer: number = await guard.run(async ({ signal, epoch }) => (signal.aborted ? 0 : (epoch ?? 1)));
console.log(answer);
{
  await using slot = await guard.acquire({ label: "report" });
  console.log(slot.kind);
}
try {
  await guard.check();
} catch (error) {
  if (error instanceof NowservingError && error.kind === "refused") console.log(error.retryAfterMs);
}
const places = new PlacesFromEvents();
nc.subscribe("nowserving.event.shop-1.>", { callback: (_, message) => void places.message(message.subject, message.json()) });
console.log(places.standing("normal", 4).position);

// @ts-expect-error a number is no key
await line.enter(7);
// @ts-expect-error there is no such option
client.limiter("shop", { onUnavailable: "panic" });
