//! Machines as an operator sees them: `ssh MACHINE sudo systemctl start nowserving` and the like work as they are
//! written in the docs.
//!
//! Each machine is a folder, which its paths are below. `ssh`, `sudo`, `install` and `systemctl` are small scripts, first in the
//! operator's PATH; the last one asks the test, which starts and ends the nodes as the unit in `deploy/systemd` says.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use async_nats::ConnectOptions;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::api::Api;
use crate::disk::SmallDisk;
use crate::nats::Nats;
use crate::process::{Process, leashed};
use crate::program::program;
use crate::wait::free_port;

const UNIT: &str = include_str!("../../../deploy/systemd/nowserving.service");
/// No runbook takes longer, on a slow machine either.
const PATIENCE: Duration = Duration::from_secs(200);
/// As the unit says.
const STOP: Duration = Duration::from_secs(30);
/// As a node starts with if it is not told otherwise.
const SHARDS: u32 = 16;
const DATA: &str = "var/lib/nowserving";
/// What Prometheus scrapes, as deploy/prometheus has it.
const METRICS_ADDR: &str = "0.0.0.0:9464";
/// In the site's folder: the first words of the command of the desk that fails next.
const FAILS_NEXT: &str = "fails-next";

const SSH: &str = r#"#!/usr/bin/env bash
set -eu
host=$1
shift
root=$SITE/$host
[ -d "$root" ] || { echo "ssh: no route to $host" >&2; exit 255; }
command=$*
for path in /etc/nowserving /var/lib/nowserving /usr/local/bin; do
    command=${command//"$path"/"$root$path"}
done
MACHINE=$host exec bash -euc "$command"
"#;
const SUDO: &str = "#!/usr/bin/env bash\nBY_ROOT=yes exec \"$@\"\n";
/// The users of the real machines are not there: what the runbooks say of them is compared with what the unit needs,
/// whose user reads the files and writes the data.
const INSTALL: &str = r#"#!/usr/bin/env bash
set -eu
owner=root group=root mode=none words=()
while [ $# -gt 0 ]; do
    case $1 in
        -o) owner=$2; shift 2 ;;
        -g) group=$2; shift 2 ;;
        -m) mode=$2; words+=("$1" "$2"); shift 2 ;;
        *) words+=("$1"); shift ;;
    esac
done
path=${words[-1]#"$SITE/$MACHINE"}
case $path in
    /etc/nowserving/cluster.key | /etc/nowserving/cluster.key.new) wants="nowserving nowserving 0600" ;;
    /etc/nowserving/node.toml) wants="root nowserving 0640" ;;
    /etc/nowserving/node.env) wants="root root 0600" ;;
    /usr/local/bin/nowserving) wants="root root 0755" ;;
    /var/lib/nowserving) wants="nowserving nowserving 0700" ;;
    *) wants="a path that the unit knows" ;;
esac
is="$owner $group $mode"
[ "$is" = "$wants" ] || { echo "install: $path: $is instead of $wants" >&2; exit 1; }
[ "${BY_ROOT:-}" = yes ] || { echo "install: $path: without sudo" >&2; exit 1; }
PATH=${PATH#*:} exec install "${words[@]}"
"#;
const SYSTEMCTL: &str = r#"#!/usr/bin/env bash
set -eu
[ "${BY_ROOT:-}" = yes ] || { echo "systemctl: without sudo" >&2; exit 1; }
exec 3<>"/dev/tcp/127.0.0.1/$SITE_PORT"
printf '%s\n' "$MACHINE $*" >&3
read -r answer <&3
[ "$answer" = ok ] || { echo "systemctl: $answer" >&2; exit 1; }
"#;

/// The operator's own command, which can be told to fail once.
const NOWSERVING: &str = r#"#!/usr/bin/env bash
set -eu
fails=$SITE/fails-next
if [ -e "$fails" ] && [[ "$* " == "$(cat "$fails") "* ]]; then
    rm "$fails"
    echo "error: unavailable: as the test wants" >&2
    exit 3
fi
exec PROGRAM "$@"
"#;

struct Machine {
    name: String,
    process: Option<Process>,
    metrics: SocketAddr,
    /// What its data is on, if that is a disk of its own.
    disk: Option<SmallDisk>,
}

/// Machines around one NATS server, and the operator's desk.
pub struct Site {
    pub nats: Nats,
    api: Api,
    machines: Vec<Machine>,
    /// Last, so that the folder goes after the processes that write to it.
    folder: TempDir,
}

impl Site {
    /// Machines on which the binary is installed, and nothing is set up.
    ///
    /// # Errors
    /// nats-server does not start, or the folder cannot be written.
    pub async fn start(machines: &[&str]) -> Result<Site> {
        let folder = tempfile::Builder::new()
            .prefix("nowserving-e2e-")
            .tempdir()?;
        let nats = Nats::start(folder.path(), Some(SHARDS), "").await?;
        let options = ConnectOptions::new().skip_subject_validation(true);
        let api = Api::new(options.connect(nats.url()).await?);
        let mut site = Site {
            nats,
            api,
            machines: Vec::new(),
            folder,
        };
        site.make_desk().await?;
        for name in machines {
            let root = site.root(name);
            fs::create_dir_all(root.join("etc/nowserving"))?;
            fs::create_dir_all(root.join("usr/local/bin"))?;
            symlink(program().await?, root.join("usr/local/bin/nowserving"))?;
            site.machines.push(Machine {
                name: (*name).to_owned(),
                process: None,
                metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)),
                disk: None,
            });
        }
        Ok(site)
    }

    async fn make_desk(&self) -> Result<()> {
        let programs = self.folder.path().join("bin");
        fs::create_dir_all(&programs)?;
        fs::create_dir_all(self.desk())?;
        for (name, text) in [
            ("ssh", SSH),
            ("sudo", SUDO),
            ("install", INSTALL),
            ("systemctl", SYSTEMCTL),
        ] {
            write_program(&programs.join(name), text)?;
        }
        let program = format!("'{}'", program().await?.display());
        let nowserving = NOWSERVING.replace("PROGRAM", &program);
        write_program(&programs.join("nowserving"), &nowserving)
    }

    /// The next command of the desk that begins with these words fails, as if the cluster did not answer.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn fail_next(&self, words: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join(FAILS_NEXT), words)?)
    }

    /// The folder in which the operator's commands run.
    #[must_use]
    pub fn desk(&self) -> PathBuf {
        self.folder.path().join("desk")
    }

    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The folder that stands for the root of a machine.
    #[must_use]
    pub fn root(&self, machine: &str) -> PathBuf {
        self.folder.path().join(machine)
    }

    /// The folder that stands for the data directory of a machine's node.
    #[must_use]
    pub fn data_dir(&self, machine: &str) -> PathBuf {
        self.root(machine).join(DATA)
    }

    /// Runs commands as the operator would, and the machines meanwhile. Returns what they printed.
    ///
    /// # Errors
    /// One fails, or they do not end.
    pub async fn run(&mut self, commands: &str) -> Result<String> {
        let script = self.folder.path().join("runbook.sh");
        fs::write(&script, commands)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = self.folder.path().join("bin");
        let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&path)))?;
        let mut command = leashed("bash".as_ref()).await?;
        command
            .arg("-eu")
            .arg(&script)
            .current_dir(self.desk())
            .env("PATH", path)
            .env("SITE", self.folder.path())
            .env("SITE_PORT", listener.local_addr()?.port().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ended = command.spawn()?.wait_with_output();
        let mut ended = pin!(tokio::time::timeout(PATIENCE, ended));
        let output = loop {
            tokio::select! {
                ended = &mut ended => break ended.context("the runbook does not end")??,
                asked = listener.accept() => self.answer(asked?.0).await?,
            }
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let status = output.status;
        ensure!(
            status.success(),
            "{status}\n── commands\n{commands}\n── stdout\n{out}\n── stderr\n{err}"
        );
        Ok(out)
    }

    /// Answers one call of `systemctl`: the machine and its words on a line.
    async fn answer(&mut self, stream: TcpStream) -> Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = match *words {
            [machine, "start", "nowserving"] | [machine, "enable", "--now", "nowserving"] => {
                self.start_unit(machine).await
            }
            [machine, "stop", "nowserving"] => self.stop_unit(machine).await,
            [machine, "restart", "nowserving"] => match self.stop_unit(machine).await {
                Ok(()) => self.start_unit(machine).await,
                stopped => stopped,
            },
            _ => Err(anyhow::anyhow!("this is not known here: {line:?}")),
        };
        let answer = match done {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("{error:#}").replace('\n', " "),
        };
        stream.write_all(format!("{answer}\n").as_bytes()).await?;
        Ok(())
    }

    async fn start_unit(&mut self, name: &str) -> Result<()> {
        let root = self.root(name);
        let log = self.folder.path().join(format!("{name}.log"));
        // systemd makes it, as the unit's StateDirectory.
        let data = self.data_dir(name);
        fs::create_dir_all(&data)?;
        let machine = self.machine(name)?;
        if let Some(process) = &mut machine.process {
            ensure!(!process.is_alive()?, "{name} runs already");
        }
        let mut words = environment(&root)?;
        words.extend(unit_command(&root, machine.metrics)?);
        machine.process = Some(Process::start(name, "env".as_ref(), words, &log).await?);
        Ok(())
    }

    /// Of a node that does not run it does nothing.
    async fn stop_unit(&mut self, name: &str) -> Result<()> {
        let machine = self.machine(name)?;
        if let Some(mut process) = machine.process.take()
            && process.is_alive()?
        {
            let ended = process.stop(STOP).await?;
            ensure!(ended.success(), "{name}: {ended}: {}", process.tail(5));
        }
        Ok(())
    }

    /// The machine is gone, with all that was on it.
    ///
    /// # Errors
    /// Its node does not run.
    pub async fn lose(&mut self, name: &str) -> Result<()> {
        self.kill(name).await?;
        Ok(fs::remove_dir_all(self.root(name))?)
    }

    /// The disk of a machine is gone, and its node ends.
    ///
    /// # Errors
    /// Its node does not run.
    pub async fn lose_disk(&mut self, name: &str) -> Result<()> {
        self.kill(name).await?;
        Ok(fs::remove_dir_all(self.data_dir(name))?)
    }

    async fn kill(&mut self, name: &str) -> Result<()> {
        let process = self.machine(name)?.process.take();
        process.context("it does not run")?.kill().await?;
        Ok(())
    }

    /// Mounts a small disk for the data of a machine, before its node was ever started.
    ///
    /// # Errors
    /// This process may not.
    pub fn mount_disk(&mut self, name: &str, bytes: u64) -> Result<()> {
        let disk = SmallDisk::mount(&self.data_dir(name), bytes)?;
        self.machine(name)?.disk = Some(disk);
        Ok(())
    }

    /// That disk.
    ///
    /// # Errors
    /// There is none.
    pub fn disk(&mut self, name: &str) -> Result<&SmallDisk> {
        let disk = self.machine(name)?.disk.as_ref();
        disk.context("it has no disk of its own")
    }

    /// Prints the ends of the nodes' logs.
    pub fn show_logs(&self) {
        for process in self.machines.iter().filter_map(|it| it.process.as_ref()) {
            eprint!("{}", process.tail(40));
        }
    }

    /// Keeps the folder, to look into a failure.
    pub fn keep(&mut self) {
        self.folder.disable_cleanup(true);
        eprintln!("kept: {}", self.folder.path().display());
    }

    fn machine(&mut self, name: &str) -> Result<&mut Machine> {
        let mut all = self.machines.iter_mut();
        let found = all.find(|machine| machine.name == name);
        found.with_context(|| format!("no machine {name}"))
    }
}

/// Writes a script that can be run.
///
/// # Errors
/// The file cannot be written.
pub fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// The variables of the unit's EnvironmentFile, as `env` takes them.
fn environment(root: &Path) -> Result<Vec<OsString>> {
    let file = root.join("etc/nowserving/node.env");
    if !file.exists() {
        return Ok(Vec::new());
    }
    Ok(fs::read_to_string(file)?
        .lines()
        .map(OsString::from)
        .collect())
}

/// The value of a setting of the unit.
fn unit_value(name: &str) -> Result<&'static str> {
    let start = format!("{name}=");
    let found = UNIT.lines().find_map(|line| line.strip_prefix(&start));
    found.with_context(|| format!("the unit has no {name}"))
}

/// What the unit runs, with the paths of this machine.
fn unit_command(root: &Path, metrics: SocketAddr) -> Result<Vec<OsString>> {
    let mut words = Vec::new();
    for word in unit_value("ExecStart")?.split_whitespace() {
        words.push(match word.strip_prefix('/') {
            Some(path) if path.ends_with(".toml") => on_machine(root, path, metrics)?.into(),
            Some(path) => root.join(path).into_os_string(),
            None => word.into(),
        });
    }
    Ok(words)
}

/// A copy of the node's installed file, beside it, whose paths are below the folder of this machine, and with an address
/// for metrics that no other machine has.
fn on_machine(root: &Path, path: &str, metrics: SocketAddr) -> Result<PathBuf> {
    let installed = root.join(path);
    let text = fs::read_to_string(&installed).with_context(|| path.to_owned())?;
    let state = format!("\"/var/lib/{}\"", unit_value("StateDirectory")?);
    let mut copied = String::new();
    for line in text.lines() {
        let (name, value) = line.split_once(" = ").unwrap_or((line, ""));
        match (name, value.strip_prefix("\"/")) {
            // The unit lets the node write nowhere else.
            ("data_dir", _) if value != state => bail!("data_dir: {value} instead of {state}"),
            ("metrics_addr", _) => {
                ensure!(value == format!("\"{METRICS_ADDR}\""), "{line}");
                copied.push_str(&format!("{name} = \"{metrics}\"\n"));
            }
            (_, Some(path)) => copied.push_str(&format!("{name} = \"{}/{path}\n", root.display())),
            _ => copied.push_str(&format!("{line}\n")),
        }
    }
    let copy = installed.with_extension("here.toml");
    fs::write(&copy, copied)?;
    Ok(copy)
}
