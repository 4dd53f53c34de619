//! Passes: `nowserving pass verify`, and the key set of `nowserving cluster jwks`.

use std::fs::Permissions;
use std::io::{Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use nowserving_client::{Admin, Jwks, LineName, PassClaims, PassVerifier};
use nowserving_pass::PASS_BYTES_MAX;
use nowserving_protocol::time;

use crate::{secret, tables};
use nowserving_terminal::output::{Output, WrongFile};

/// A key set has a few hundred bytes; more is a file that was named by mistake.
const JWKS_BYTES_MAX: u64 = 65_536;

/// Signed passes, by which others know that a token holds a seat.
#[derive(Debug, Subcommand)]
pub enum PassCommand {
    /// Checks a pass by a file with the public keys, and prints what it says. Asks no cluster.
    ///
    /// Exit code 1 if the pass is refused. It does not know what was revoked: docs/pass.md says how an edge does.
    #[command(after_help = "\
Examples:
  nowserving cluster jwks --out jwks.json
  nowserving claim shop-1 $TICKET --pass --json | jq -r .pass | nowserving pass verify --jwks jwks.json --line shop-1")]
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The pass; without it, or with `-`, it is read from standard input, where other users of the machine cannot see it.
    pass: Option<String>,
    /// The file that `nowserving cluster jwks` wrote.
    #[arg(long, value_name = "FILE")]
    jwks: PathBuf,
    /// Takes only a pass for this line [default: any].
    #[arg(long)]
    line: Option<LineName>,
    /// Takes only a pass of the cluster with this name [default: any that signs with these keys].
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

/// Prints the public keys, or writes them to a file.
#[derive(Debug, Args)]
pub struct JwksArgs {
    /// Writes them to this file, which is replaced whole or not at all.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs one of them.
pub fn run(command: PassCommand, output: &Output) -> anyhow::Result<ExitCode> {
    let PassCommand::Verify(args) = command;
    let mut keys = verifier(&args.jwks)?;
    if let Some(cluster) = &args.cluster {
        keys = keys.of_cluster(cluster);
    }
    let pass = secret::argument_or_stdin(args.pass, PASS_BYTES_MAX, "pass")?;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let claims = keys.verify(pass.trim(), args.line.as_ref(), now_s)?;
    output.answer(&claims, |claims| claims_text(claims, output))?;
    Ok(ExitCode::SUCCESS)
}

/// `nowserving cluster jwks`.
pub async fn jwks(admin: &Admin, args: &JwksArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let jwks = admin.jwks().await?;
    let pretty = serde_json::to_string_pretty(&jwks)?;
    if let Some(file) = &args.out {
        save(file, &pretty).with_context(|| file.display().to_string())?;
    }
    output.answer(&jwks, |_| match &args.out {
        Some(file) => format!("{}: {}", file.display(), names(&jwks)),
        None => pretty,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn names(jwks: &Jwks) -> String {
    let names: Vec<&str> = jwks.keys.iter().map(|key| key.kid.as_str()).collect();
    format!("the keys {}", names.join(", "))
}

/// A web server that reads the file meanwhile has the old keys or the new ones.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    // Public keys: the edge runs as another user.
    let mut file = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    writeln!(file, "{text}")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn verifier(path: &Path) -> anyhow::Result<PassVerifier> {
    let name = || path.display().to_string();
    let wrong = |what: String| WrongFile(format!("{}: {what}", path.display()));
    let file = std::fs::File::open(path).with_context(name)?;
    let mut text = String::new();
    let read = file.take(JWKS_BYTES_MAX + 1).read_to_string(&mut text);
    let bytes = read.with_context(name)?;
    if bytes as u64 > JWKS_BYTES_MAX {
        return Err(wrong(format!("more than {JWKS_BYTES_MAX} bytes")).into());
    }
    let jwks: Jwks = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    Ok(PassVerifier::new(&jwks).map_err(|error| wrong(error.to_string()))?)
}

fn claims_text(claims: &PassClaims, output: &Output) -> String {
    let time_of = |seconds: u64| time::text(seconds.saturating_mul(1_000));
    let rows = [
        ("line", claims.line.to_string()),
        ("lane", claims.lane.to_string()),
        ("token", claims.token.to_string()),
        ("epoch", claims.epoch.to_string()),
        ("subject", claims.sub.escape_debug().to_string()),
        ("issuer", claims.iss.escape_debug().to_string()),
        ("signed", time_of(claims.iat)),
        ("expires", time_of(claims.exp)),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    tables::plain("claim, value", rows.to_vec(), output)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_pass::{PassKey, PassKeys};
    use nowserving_protocol::keys::ClusterKey;

    use super::*;

    #[test]
    fn a_key_set_comes_back_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwks.json");
        for seed in [7, 8] {
            let key = PassKey::of(&ClusterKey::new([seed; 32]));
            let jwks = PassKeys::one(key).jwks();
            save(&path, &serde_json::to_string_pretty(&jwks).unwrap()).unwrap();
            assert!(verifier(&path).is_ok());
            let kept: Jwks = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(kept, jwks);
        }
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "the part is gone");
        let missing = folder.path().join("no/such/jwks.json");
        assert!(save(&missing, "{}").is_err());
    }

    #[test]
    fn other_files_are_wrong_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwks.json");
        let long = " ".repeat(JWKS_BYTES_MAX as usize + 1);
        for text in [
            "",
            "{}",
            r#"{"keys":[]}"#,
            r#"{"keys":[{"kty":"RSA"}]}"#,
            &long,
        ] {
            std::fs::write(&path, text).unwrap();
            let error = verifier(&path).unwrap_err();
            assert!(error.is::<WrongFile>(), "{error}");
            assert!(error.to_string().contains("jwks.json: "), "{error}");
        }
    }
}
