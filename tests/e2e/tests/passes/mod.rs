//! Signed passes: given with a seat, checked by PyJWT and jose with the key set alone, by the command, and by the SDK's
//! checker, which refuses those of tokens that are gone or were claimed since; and while the cluster's key is rotated.

mod rotated;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_client::{BadPass, Client, PassChecker, PassClaims, PassVerifier};
use nowserving_e2e::{
    Api, Cli, Cluster, Format, HOUR_MS, Language, Route, eventually, jwt_program, number,
};
use nowserving_pass::PassKey;
use nowserving_protocol::error::Code;
use nowserving_protocol::keys::{ClusterKey, LoadedKeys};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

const LINE: &str = "passes";
const ISSUER: &str = "nowserving/e2e";
const PATIENCE: Duration = Duration::from_secs(30);
/// Verifiers of other makes.
const PROGRAMS: [(Language, &str); 2] = [
    (Language::Python, include_str!("verify.py")),
    (Language::JavaScript, include_str!("verify.mjs")),
];
/// The start of a pass of the algorithm `none`: `{"alg":"none","typ":"JWT"}`.
const HEADER_OF_NONE: &str = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";

pub async fn signed_and_checked(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let cli = Cli::new(cluster.nats.url());
    let settings = json!({
        "seats": 2, "queue_limit": 10, "waiting_idle_timeout_ms": HOUR_MS,
        "claim_timeout_ms": HOUR_MS, "checkout_timeout_ms": HOUR_MS,
    });
    api.admin(LINE, "create", settings).await?;
    let mut tickets = Vec::new();
    for key in ["ann", "bob", "cat"] {
        tickets.push(api.enter(LINE, key).await?["ticket"].clone());
    }
    let jwks = key_set(cluster, &cli, 1).await?;
    let passes = given(&api, &tickets).await?;
    let shards = cluster.options().shards;
    let msgpack = api.by(Format::MsgPack, Route::Shard(shards));
    unchanged(&api, &msgpack, &tickets).await?;
    by_others(cluster, &jwks, &passes).await?;
    by_command(&cli, &jwks, &passes, &tickets).await?;
    revoked(cluster, &api, &jwks, &passes, &tickets).await?;
    rotated::passes(cluster, &cli, &api).await?;
    not_in_logs(cluster, &passes)
}

/// Passes of the first token: before the claim, and after it.
struct Passes {
    admitted: String,
    claimed: String,
}

async fn given(api: &Api, tickets: &[Value]) -> Result<Passes> {
    let body = |ticket| json!({"ticket": ticket, "pass": true});
    let admitted = api.ok(LINE, "status", body(&tickets[0])).await?;
    ensure!(admitted["state"] == "admitted", "{}", admitted["state"]);
    let waiting = api.ok(LINE, "status", body(&tickets[2])).await?;
    for field in ["pass", "pass_expires_in_ms"] {
        ensure!(waiting.get(field).is_none(), "{field} while it waits");
        ensure!(admitted.get(field).is_some(), "no {field} with a seat");
    }
    api.refused(LINE, "claim", body(&tickets[2]), Code::NotAdmitted)
        .await?;
    let claimed = api.ok(LINE, "claim", body(&tickets[0])).await?;
    let again = api.ok(LINE, "claim", body(&tickets[0])).await?;
    ensure!(again["epoch"] == claimed["epoch"] && again["pass"].is_string());
    // An hour, rounded up to the next second of the clock.
    let lasts_ms = number(&claimed, "pass_expires_in_ms")?;
    let expires_ms = number(&claimed, "expires_in_ms")?;
    ensure!((expires_ms..=expires_ms + 1_000).contains(&lasts_ms));
    for body in [
        json!({"key": "ann", "pass": true}),
        json!({"ticket": tickets[0], "pass": true, "consistency": "local"}),
        json!({"ticket": tickets[0], "pass": "yes"}),
    ] {
        let refusal = api.refused(LINE, "status", body, Code::BadRequest).await?;
        let message = refusal["message"].as_str().unwrap_or_default();
        ensure!(message.contains("pass:"), "{message}");
    }
    Ok(Passes {
        admitted: text(&admitted)?,
        claimed: text(&claimed)?,
    })
}

/// Requests without `pass` are answered as before; with it, both formats have it, on every route.
async fn unchanged(api: &Api, msgpack: &Api, tickets: &[Value]) -> Result<()> {
    for api in [api, msgpack] {
        for op in ["status", "claim"] {
            let without = api.ok(LINE, op, json!({"ticket": tickets[0]})).await?;
            ensure!(without.get("pass").is_none() && without.get("pass_expires_in_ms").is_none());
            let body = json!({"ticket": tickets[0], "pass": true});
            text(&api.ok(LINE, op, body).await?)?;
        }
    }
    Ok(())
}

fn text(status: &Value) -> Result<String> {
    let pass = status["pass"].as_str().context("no pass")?;
    Ok(pass.to_owned())
}

/// Writes the key set, of so many keys, to a file by the command; by hand the same is answered.
async fn key_set(cluster: &Cluster, cli: &Cli, count: usize) -> Result<PathBuf> {
    let file = cluster.folder().join(format!("jwks-{count}.json"));
    let out = file.to_str().context("a folder that is no text")?;
    let printed = cli.run(&["cluster", "jwks", "--out", out]).await?.done()?;
    let asked = cluster.api().cluster("jwks", json!({})).await?;
    let written: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    ensure!(printed == asked && written == asked, "{asked}: {written}");
    let keys = asked["keys"].as_array().context("no keys")?;
    ensure!(keys.len() == count && keys[0]["kty"] == "OKP", "{asked}");
    ensure!(keys[0]["crv"] == "Ed25519" && keys[0]["alg"] == "EdDSA");
    let bad = json!({"kid": "1"});
    let api = cluster.api();
    api.cluster_refused("jwks", bad, Code::BadRequest).await?;
    Ok(file)
}

/// What the cluster signed, and what is wrong with others, in the order of [`wrong`].
async fn by_others(cluster: &Cluster, jwks: &Path, passes: &Passes) -> Result<()> {
    let key = std::fs::read(cluster.key_file())?;
    let keys = LoadedKeys::from_text(&key)?;
    let key = keys.iter().next().context("a key")?;
    let good = verifier(jwks)?.verify(&passes.claimed, None, now_s()?)?;
    let mut asked = vec![passes.admitted.clone(), passes.claimed.clone()];
    asked.extend(wrong(key, &good, &passes.claimed)?);
    for (language, program) in PROGRAMS {
        let answers = ask(language, program, jwks, &asked).await?;
        ensure!(answers.len() == asked.len(), "{answers:?}");
        for (answer, epoch) in answers.iter().zip([0, good.epoch]) {
            let claims = &answer["claims"];
            ensure!(claims["iss"] == ISSUER && claims["aud"] == LINE, "{answer}");
            ensure!(claims["line"] == LINE && claims["lane"] == "normal");
            ensure!(claims["token"] == 1 && claims["epoch"] == epoch, "{answer}");
            let sub = format!("{LINE}/{}/normal/1", claims["incarnation"]);
            ensure!(claims["sub"] == sub.as_str(), "{answer}");
            ensure!(claims["iat"] == claims["nbf"], "{answer}");
        }
        for (nth, answer) in answers.iter().enumerate().skip(2) {
            ensure!(answer["refused"].is_string(), "{nth}: {answer}");
        }
        let (expired, audience) = match language {
            Language::Python => ("ExpiredSignatureError", "InvalidAudienceError"),
            Language::JavaScript => ("ERR_JWT_EXPIRED", "ERR_JWT_CLAIM_VALIDATION_FAILED"),
        };
        ensure!(answers[2]["refused"] == audience, "{}", answers[2]);
        ensure!(answers[3]["refused"] == expired, "{}", answers[3]);
    }
    Ok(())
}

/// For another line, expired, of another cluster's name, of another cluster's key, altered, and without a signature.
fn wrong(key: &ClusterKey, good: &PassClaims, pass: &str) -> Result<[String; 6]> {
    let sign = |claims: &PassClaims| PassKey::of(key).sign(claims).into_string();
    let other_line = PassClaims {
        aud: "another".to_owned(),
        ..good.clone()
    };
    let expired = PassClaims {
        iat: good.iat - 100,
        nbf: good.iat - 100,
        exp: good.iat - 60,
        ..good.clone()
    };
    let other_cluster = PassClaims {
        iss: "nowserving/another".to_owned(),
        ..good.clone()
    };
    let foreign = PassKey::of(&ClusterKey::new([77; 32]));
    let (message, signature) = pass.rsplit_once('.').context("no signature")?;
    let (first, rest) = signature.split_at(1);
    let altered = if first == "A" { "B" } else { "A" };
    let (_, claims) = message.split_once('.').context("no claims")?;
    Ok([
        sign(&other_line),
        sign(&expired),
        sign(&other_cluster),
        foreign.sign(good).into_string(),
        format!("{message}.{altered}{rest}"),
        format!("{HEADER_OF_NONE}.{claims}."),
    ])
}

/// The program's answers to these passes.
async fn ask(
    language: Language,
    program: &str,
    jwks: &Path,
    passes: &[String],
) -> Result<Vec<Value>> {
    let (interpreter, file) = jwt_program(language, program).await?;
    let mut command = Command::new(interpreter);
    command.arg(file).arg(jwks).args([LINE, ISSUER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    let mut input = child.stdin.take().context("no stdin")?;
    input.write_all(passes.join("\n").as_bytes()).await?;
    input.write_all(b"\n").await?;
    drop(input);
    let done = tokio::time::timeout(PATIENCE * 4, child.wait_with_output()).await;
    let done = done.context("the verifier does not end")??;
    ensure!(done.status.success(), "{language:?}: {}", done.status);
    let lines = String::from_utf8(done.stdout)?;
    let read = |line: &str| serde_json::from_str(line).context("not JSON");
    lines.lines().map(read).collect()
}

/// `claim --pass`, `status --pass` and `pass verify`.
async fn by_command(cli: &Cli, jwks: &Path, passes: &Passes, tickets: &[Value]) -> Result<()> {
    let ticket = tickets[0].as_str().context("no ticket")?;
    let jwks = jwks.to_str().context("a folder that is no text")?;
    for op in ["status", "claim"] {
        let words = [op, LINE, ticket, "--pass"];
        let pass = text(&cli.run(&words).await?.done()?)?;
        let words = ["pass", "verify", &pass, "--jwks", jwks, "--line", LINE];
        let claims = cli.run(&words).await?.done()?;
        ensure!(claims["iss"] == ISSUER && claims["token"] == 1, "{claims}");
        let without = cli.run(&[op, LINE, ticket]).await?.done()?;
        ensure!(without.get("pass").is_none());
    }
    let verify = ["pass", "verify", &passes.claimed, "--jwks", jwks];
    for more in [["--line", "another"], ["--cluster", "another"]] {
        let words = [&verify[..], &more].concat();
        cli.run(&words).await?.failed(1, "failed")?;
    }
    let shown = cli.run_as_text(&verify).await?;
    ensure!(shown.code == 0, "{shown:?}");
    Ok(())
}

/// A checker that follows events, beside one that does not.
async fn revoked(
    cluster: &Cluster,
    api: &Api,
    jwks: &Path,
    passes: &Passes,
    tickets: &[Value],
) -> Result<()> {
    let client = Client::connect(&cluster.nats.url()).await?;
    let checker = PassChecker::new(LINE.parse()?, verifier(jwks)?);
    let alone = PassChecker::new(LINE.parse()?, verifier(jwks)?);
    ensure!(checker.follow(&client.line("another")?).await.is_err());
    let _following = checker.follow(&client.line(LINE)?).await?;
    // The second token: its pass from before the claim is good until the claim.
    let body = json!({"ticket": tickets[1], "pass": true});
    let before = text(&api.ok(LINE, "status", body.clone()).await?)?;
    ensure!(checker.check(&before)?.epoch == 0);
    let claimed = api.ok(LINE, "claim", body).await?;
    becomes_revoked(&checker, &before).await?;
    let epoch = checker.check(&text(&claimed)?)?.epoch;
    ensure!(epoch == number(&claimed, "epoch")?, "{epoch}");
    // The first one is kicked: its passes are good no more.
    ensure!(checker.check(&passes.claimed)?.token == 1);
    let kick = json!({"tokens": [{"lane": "normal", "token": 1}]});
    let kicked = api.admin(LINE, "kick", kick).await?;
    ensure!(kicked["kicked"] == 1, "{kicked}");
    becomes_revoked(&checker, &passes.claimed).await?;
    ensure!(checker.check(&passes.admitted) == Err(BadPass::Revoked));
    checker.check(&text(&claimed)?)?;
    // Without events nobody knows until it expires.
    alone.check(&passes.claimed)?;
    let gone = json!({"ticket": tickets[0], "pass": true});
    let gone = api.ok(LINE, "status", gone).await?;
    ensure!(gone["state"] == "gone" && gone.get("pass").is_none());
    Ok(())
}

async fn becomes_revoked(checker: &PassChecker, pass: &str) -> Result<()> {
    eventually("the pass is revoked", PATIENCE, async || {
        match checker.check(pass) {
            Err(BadPass::Revoked) => Ok(Some(())),
            other => other.map(|_| None).map_err(Into::into),
        }
    })
    .await
}

fn not_in_logs(cluster: &Cluster, passes: &Passes) -> Result<()> {
    for id in cluster.ids() {
        let log = cluster.folder().join(format!("node-{id}.log"));
        let log = std::fs::read_to_string(log)?;
        for pass in [&passes.admitted, &passes.claimed] {
            let (_, signature) = pass.rsplit_once('.').context("no signature")?;
            ensure!(!log.contains(signature), "node {id} logs passes");
        }
    }
    Ok(())
}

fn verifier(jwks: &Path) -> Result<PassVerifier> {
    let jwks = serde_json::from_slice(&std::fs::read(jwks)?)?;
    Ok(PassVerifier::new(&jwks)?.of_cluster("e2e"))
}

fn now_s() -> Result<u64> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(since.as_secs())
}
