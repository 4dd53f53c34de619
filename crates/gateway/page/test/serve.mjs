// node serve.mjs [PORT]: every state with made-up data, in a browser of your own.
import { Gateway } from "./server.mjs";
import { previews } from "./render.mjs";
const gateway = new Gateway({ previews });
gateway.set("waiting");
await gateway.listen(Number(process.argv[2] ?? 8088));
console.log(gateway.origin);
