// node serve.mjs [PORT]: the dashboard with made-up data and changes, in a browser of your own.
import { Dashboard } from "./server.mjs";
const dashboard = await new Dashboard({ below: "/ops/" }).allow().listen(Number(process.argv[2] ?? 8089));
console.log(dashboard.url);
