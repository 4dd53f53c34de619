//! Nodes, the SDK and the command line tool log in by certificates, nkeys and credentials.

mod certificates;
mod jwt;
mod links;
mod routes;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nkeys::KeyPair;
use nowserving_client::{Client, ClientOptions, Kind, Security};
use nowserving_e2e::{
    Cli, Nats, PASSWORD, Process, eventually, free_port, inbox_of, program, write_key,
};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::roles;
use certificates::{Authority, write_private};

const PATIENCE: Duration = Duration::from_secs(30);

/// A NATS server with logins of some kind.
struct Site {
    nats: Nats,
    /// Last, so that the folder goes after the process that writes to it.
    folder: TempDir,
}

impl Site {
    async fn start(folder: TempDir, configuration: &str) -> Result<Site> {
        let nats = Nats::start_without_streams(folder.path(), configuration).await?;
        write_key(&folder.path().join("cluster.key"), 1)?;
        Ok(Site { nats, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the one node of a cluster.
    async fn node(&self, name: &str, url: &str, security: &Security) -> Result<Process> {
        let own = [
            ("--id", "1".to_owned()),
            ("--nodes", "1".to_owned()),
            ("--metrics-addr", format!("127.0.0.1:{}", free_port()?)),
        ];
        self.start_node(name, name, url, &own, security).await
    }

    /// Starts a node of a cluster with flags of its own.
    async fn start_node(
        &self,
        name: &str,
        cluster: &str,
        url: &str,
        own: &[(&str, String)],
        security: &Security,
    ) -> Result<Process> {
        let more: [(&str, OsString); 4] = [
            ("--cluster", cluster.into()),
            ("--data-dir", self.path(name).into()),
            ("--key-file", self.path("cluster.key").into()),
            ("--nats", url.into()),
        ];
        let mut args = vec![OsString::from("node")];
        for (flag, value) in own {
            args.extend([OsString::from(flag), value.into()]);
        }
        for (flag, value) in more {
            args.extend([OsString::from(flag), value]);
        }
        args.extend(flags(security));
        let log = self.path(&format!("{name}.log"));
        Process::start(name, program().await?.as_os_str(), args, &log).await
    }

    /// The node takes part, and the tool and the SDK are served.
    async fn serves(&self, node: &Security, operator: &Security, backend: &Security) -> Result<()> {
        let urls = self.urls();
        let process = self.node("served", &urls.nodes, node).await?;
        let cli = Cli::of_role(&self.nats, "operators");
        eventually("the cluster serves", PATIENCE, async || {
            let status = cli.run(&words("cluster status", operator)).await?;
            Ok((status.code == 0).then_some(()))
        })
        .await
        .with_context(|| process.tail(20))?;
        let create = "line create secured --seats 1 --queue-limit 9";
        cli.run(&words(create, operator)).await?.done()?;
        let client = connect(&urls.backends, backend).await?;
        let entered = client.line("secured")?.enter("a").await?;
        ensure!(entered.token == 1, "{entered:?}");
        Ok(())
    }

    fn urls(&self) -> Urls {
        let url = |user| self.nats.url_as(user);
        Urls {
            nodes: url("nodes"),
            backends: url("backends"),
        }
    }

    /// The tool and the SDK do not get in, and say so in these words.
    async fn refuses(&self, security: &Security, kind: Kind, named: &str) -> Result<()> {
        let url = self.urls().backends;
        let Err(error) = connect(&url, security).await else {
            anyhow::bail!("{security:?} got in");
        };
        let error = error.downcast::<nowserving_client::Error>()?;
        ensure!(error.kind() == kind, "{error:?}");
        ensure!(error.to_string().contains(named), "{named}: {error}");
        let cli = Cli::new(url);
        let said = cli.run_as_text(&words("info secured", security)).await?;
        ensure!(said.code != 0 && said.stderr.contains(named), "{said:?}");
        Ok(())
    }
}

/// Where each role connects.
struct Urls {
    nodes: String,
    backends: String,
}

/// The flags of nodes and of the tool.
fn flags(security: &Security) -> Vec<OsString> {
    let files = [
        ("--creds", &security.credentials_file),
        ("--nkey", &security.nkey_file),
        ("--tls-ca", &security.tls_ca_file),
        ("--tls-cert", &security.tls_cert_file),
        ("--tls-key", &security.tls_key_file),
    ];
    let mut flags = Vec::new();
    for (flag, file) in files {
        if let Some(file) = file {
            flags.extend([OsString::from(flag), file.into()]);
        }
    }
    flags
}

fn words(command: &str, security: &Security) -> Vec<OsString> {
    let mut words: Vec<OsString> = command.split(' ').map(OsString::from).collect();
    words.extend(flags(security));
    words
}

async fn connect(url: &str, security: &Security) -> Result<Client> {
    let mut options = ClientOptions::default();
    options.inbox_prefix = Some(inbox_of("backends"));
    options.security = security.clone();
    Ok(Client::connect_with(url, options).await?)
}

/// A server as shipped: it demands certificates, and passwords.
#[tokio::test]
async fn everybody_shows_a_certificate() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let good = Authority::new("good")?;
    let wrong = Authority::new("wrong")?;
    good.write(folder.path(), "server")?;
    let files = |authority: &Authority, name: &str| authority.write(folder.path(), name);
    let (node, client) = (files(&good, "node")?, files(&good, "client")?);
    let stranger = files(&wrong, "stranger")?;
    let configuration = roles::as_shipped(Some(folder.path()))?;
    let site = Site::start(folder, &configuration).await?;
    site.serves(&node, &client, &client).await?;

    let other_root = Security {
        tls_ca_file: stranger.tls_ca_file.clone(),
        ..client.clone()
    };
    let reason = "no root of tls_ca_file";
    site.refuses(&other_root, Kind::Connection, reason).await?;
    // The server may close the connection before its reason has been read, so only the address is sure.
    let no_certificate = Security {
        tls_cert_file: None,
        tls_key_file: None,
        ..client.clone()
    };
    let wrong_certificate = Security {
        tls_ca_file: client.tls_ca_file.clone(),
        ..stranger
    };
    for security in [&no_certificate, &wrong_certificate] {
        let reason = "NATS at nats://127.0.0.1";
        site.refuses(security, Kind::Connection, reason).await?;
    }
    let half = Security {
        tls_key_file: None,
        ..client
    };
    let reason = "tls_cert_file needs tls_key_file";
    site.refuses(&half, Kind::BadArgument, reason).await?;
    nodes_say_why(&site, &other_root, &node).await
}

/// A node with a wrong root goes on trying and says why; one whose key others can read does not start.
async fn nodes_say_why(site: &Site, other_root: &Security, node: &Security) -> Result<()> {
    let url = site.urls().nodes;
    let tries = site.node("other-root", &url, other_root).await?;
    eventually("the node says why", PATIENCE, async || {
        let said = tries.printed()?.contains("no root of tls_ca_file");
        Ok(said.then_some(()))
    })
    .await
    .with_context(|| tries.tail(20))?;
    let open = site.path("open.key");
    let key = node.tls_key_file.as_ref().context("a key")?;
    std::fs::copy(key, &open)?;
    certificates::set_mode(&open, 0o644)?;
    let careless = Security {
        tls_key_file: Some(open),
        ..node.clone()
    };
    let mut refused = site.node("careless", &url, &careless).await?;
    let status = refused.ended(PATIENCE).await?;
    let printed = refused.printed()?;
    ensure!(!status.success(), "{status}: {printed}");
    ensure!(printed.contains("tls_key_file"), "{printed}");
    ensure!(printed.contains("chmod 600"), "{printed}");
    Ok(())
}

/// A server as shipped with nkeys: it knows the public keys alone.
#[tokio::test]
async fn everybody_signs_with_an_nkey() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let seed_of = |role: &str| folder.path().join(format!("{}.nk", role.to_lowercase()));
    let mut public_keys = std::collections::BTreeMap::new();
    for role in [
        "NODES",
        "BACKENDS",
        "OPERATORS",
        "AUDITORS",
        "CAPACITY",
        "DISPATCHERS",
        "KEY_VALUES",
        "LIMITS",
        "EDGES",
        "GATEWAYS",
        "PUSH_SERVICES",
    ] {
        let pair = KeyPair::new_user();
        write_private(&seed_of(role), &pair.seed()?)?;
        public_keys.insert(role, pair.public_key());
    }
    let configuration =
        roles::with_nkeys(|role| public_keys.get(role).cloned().unwrap_or_default())?;
    let by = |role: &str| Security {
        nkey_file: Some(seed_of(role)),
        ..Security::default()
    };
    let security = [by("NODES"), by("OPERATORS"), by("BACKENDS")];
    let stranger = Security {
        nkey_file: Some(folder.path().join("stranger.nk")),
        ..Security::default()
    };
    write_private(
        &folder.path().join("stranger.nk"),
        &KeyPair::new_user().seed()?,
    )?;
    let (mut site, node) =
        log_in_without_passwords(folder, &configuration, &security, &stranger).await?;
    let [_, operator, backend] = &security;
    let client = connect(&site.nats.url(), backend).await?;

    // Every user gets another seed, while programs run; a bad file changes nothing.
    let seed_of_nodes = site.path("nodes.nk");
    write_private(&seed_of_nodes, "no seed")?;
    says_on_hang_up(&node, "connections to NATS stay as they are").await?;
    for (role, public_key) in &mut public_keys {
        let pair = KeyPair::new_user();
        write_private(
            &site.path(&format!("{}.nk", role.to_lowercase())),
            &pair.seed()?,
        )?;
        *public_key = pair.public_key();
    }
    says_on_hang_up(&node, "the next connection to NATS uses these files").await?;
    let configuration =
        roles::with_nkeys(|role| public_keys.get(role).cloned().unwrap_or_default())?;
    site.nats.restart_with(&configuration).await?;
    let cli = Cli::new(site.nats.url()).with_inbox_of("operators");
    eventually("the cluster serves again", PATIENCE, async || {
        let status = cli.run(&words("cluster status", operator)).await?;
        let entered = client.line("secured")?.enter("b").await?;
        Ok((status.code == 0 && entered.token == 2).then_some(()))
    })
    .await
    .with_context(|| node.tail(20))
}

async fn says_on_hang_up(node: &Process, words: &str) -> Result<()> {
    node.signal(Signal::HUP)?;
    eventually(words, PATIENCE, async || {
        Ok(node.printed()?.contains(words).then_some(()))
    })
    .await
    .with_context(|| node.tail(20))
}

/// A server in operator mode: it knows the operator and the account, and users bring a JWT.
#[tokio::test]
async fn everybody_shows_a_jwt() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let operator = jwt::Operator::new()?;
    let credentials = |role: &str| -> Result<Security> {
        let path = folder.path().join(format!("{role}.creds"));
        write_private(&path, &operator.credentials(role)?)?;
        Ok(Security {
            credentials_file: Some(path),
            ..Security::default()
        })
    };
    let security = [
        credentials("nodes")?,
        credentials("operators")?,
        credentials("backends")?,
    ];
    let path = folder.path().join("stranger.creds");
    write_private(&path, &jwt::Operator::new()?.credentials("backends")?)?;
    let stranger = Security {
        credentials_file: Some(path),
        ..Security::default()
    };
    let configuration = operator.configuration();
    log_in_without_passwords(folder, &configuration, &security, &stranger).await?;
    Ok(())
}

/// Of nodes, operators and backends. Returns the server, and the one node.
async fn log_in_without_passwords(
    folder: TempDir,
    configuration: &str,
    security: &[Security; 3],
    stranger: &Security,
) -> Result<(Site, Process)> {
    let site = Site::start(folder, configuration).await?;
    let url = site.nats.url();
    let [node, operator, backend] = security;
    let process = site.node("served", &url, node).await?;
    let cli = Cli::new(url.clone()).with_inbox_of("operators");
    eventually("the cluster serves", PATIENCE, async || {
        let status = cli.run(&words("cluster status", operator)).await?;
        Ok((status.code == 0).then_some(()))
    })
    .await
    .with_context(|| process.tail(20))?;
    let create = "line create secured --seats 1 --queue-limit 9";
    cli.run(&words(create, operator)).await?.done()?;
    let entered = connect(&url, backend).await?.line("secured")?;
    let entered = entered.enter("a").await?;
    ensure!(entered.token == 1, "{entered:?}");
    let denied = cli.run(&words(create, backend)).await?;
    denied.failed(1, "forbidden")?;
    let Err(error) = connect(&url, stranger).await else {
        anyhow::bail!("a stranger got in");
    };
    let error = error.downcast::<nowserving_client::Error>()?;
    ensure!(error.kind() == Kind::Forbidden, "{error:?}");
    let unknown = cli.run(&words("info secured", stranger)).await?;
    unknown.failed(1, "forbidden")?;
    let mut refused = site.node("stranger", &url, stranger).await?;
    let status = refused.ended(PATIENCE).await?;
    let printed = refused.printed()?;
    ensure!(!status.success(), "{status}: {printed}");
    ensure!(printed.contains("refused the login"), "{printed}");
    Ok((site, process))
}

/// A real server takes the files of deploy/nats as they are, with the variables in its environment.
#[tokio::test]
async fn the_shipped_files_are_valid() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Authority::new("good")?.write(folder.path(), "server")?;
    Authority::new("route")?.write(folder.path(), "route")?;
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/nats");
    let mut variables = Vec::new();
    for entry in std::fs::read_dir(shipped)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let here = folder.path().display().to_string();
        let name = path.file_name().context("a name")?;
        std::fs::write(
            folder.path().join(name),
            text.replace("/etc/nats/tls", &here),
        )?;
        for line in text.lines().filter(|line| line.contains("$NATS_")) {
            let name = line.split('$').nth(1).unwrap_or_default();
            let name: String = name.split([',', ' ']).take(1).collect();
            let value = match name.ends_with("_NKEY") {
                true => KeyPair::new_user().public_key(),
                false => format!("{PASSWORD:?}"),
            };
            variables.push((name, value));
        }
    }
    let server = std::fs::read_to_string(folder.path().join("server.conf"))?;
    let with_routes = server.replace("# include \"cluster", "include \"cluster");
    let with_nkeys = server.replace("\"users.conf\"", "\"users-nkeys.conf\"");
    for text in [server, with_routes, with_nkeys] {
        std::fs::write(folder.path().join("server.conf"), text)?;
        check(folder.path(), &variables).await?;
    }
    Ok(())
}

async fn check(folder: &Path, variables: &[(String, String)]) -> Result<()> {
    let mut command = tokio::process::Command::new(nowserving_e2e::nats_server()?);
    command.args(["-t", "-c"]).arg(folder.join("server.conf"));
    command.envs(variables.iter().cloned());
    let output = command.output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    Ok(())
}
