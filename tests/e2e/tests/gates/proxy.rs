//! The real programs, with the files of `deploy/gates`: only addresses and folders are others.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Process, free_port};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/gates");

/// A program that `deploy/gates` has a configuration for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nginx,
    Traefik,
    Caddy,
    Envoy,
    Haproxy,
}

/// What the configuration says of the time while no gateway answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// As it is shipped: 503.
    Closed,
    /// With the line that is shipped as a comment.
    Open,
}

/// What stands behind a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Behind {
    pub gateway: SocketAddr,
    pub gateway_grpc: SocketAddr,
    pub shop: SocketAddr,
}

/// A running proxy.
pub struct Proxy {
    pub addr: SocketAddr,
    pub process: Process,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Nginx,
        Kind::Traefik,
        Kind::Caddy,
        Kind::Envoy,
        Kind::Haproxy,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Traefik => "traefik",
            Kind::Caddy => "caddy",
            Kind::Envoy => "envoy",
            Kind::Haproxy => "haproxy",
        }
    }

    /// The program, if `cargo xtask` has found one.
    pub fn program(self) -> Option<PathBuf> {
        let given = std::env::var_os(self.variable());
        given.filter(|given| !given.is_empty()).map(PathBuf::from)
    }

    pub fn variable(self) -> String {
        self.name().to_ascii_uppercase()
    }

    /// Starts one. `folder`: for its files, new.
    pub async fn start(
        self,
        program: &Path,
        folder: &Path,
        behind: Behind,
        away: Away,
    ) -> Result<Proxy> {
        std::fs::create_dir_all(folder)?;
        let addr = loopback()?;
        let setup = Setup {
            folder: folder.to_owned(),
            addr,
            gate: loopback()?,
            behind,
            away,
        };
        let args = match self {
            Kind::Nginx => setup.nginx()?,
            Kind::Traefik => setup.traefik()?,
            Kind::Caddy => setup.caddy()?,
            Kind::Envoy => setup.envoy()?,
            Kind::Haproxy => setup.haproxy()?,
        };
        // Caddy keeps files in folders that these name.
        let mut words: Vec<OsString> = ["XDG_CONFIG_HOME=", "XDG_DATA_HOME="]
            .map(|name| {
                let mut word = OsString::from(name);
                word.push(folder);
                word
            })
            .into();
        words.push(program.into());
        words.extend(args.into_iter().map(OsString::from));
        let log = folder.join("log");
        let process = Process::start(self.name(), "env".as_ref(), words, &log).await?;
        Ok(Proxy { addr, process })
    }
}

struct Setup {
    folder: PathBuf,
    addr: SocketAddr,
    /// By which some ask themselves.
    gate: SocketAddr,
    behind: Behind,
    away: Away,
}

impl Setup {
    fn nginx(&self) -> Result<Vec<String>> {
        let mut text = self.read("nginx/nginx.conf")?;
        put(&mut text, "listen 8080;", &format!("listen {};", self.addr))?;
        self.put_behind(&mut text)?;
        // A package has these in folders of the system.
        let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {};", self.path(name)));
        let folders = format!("\nhttp {{\naccess_log off;\n{}\n", folders.join("\n"));
        put(&mut text, "\nhttp {\n", &folders)?;
        if self.away == Away::Closed {
            // For a shop with a name, which the comments are for.
            put(
                &mut text,
                "# server_name shop.example;",
                "server_name shop.example;",
            )?;
            let others = "    # server {\n    #     listen 8080 default_server;\n    #     return 421;\n    # }\n";
            let listen = format!(
                "server {{ listen {} default_server; return 421; }}\n",
                self.addr
            );
            put(&mut text, others, &listen)?;
        }
        if self.away == Away::Open {
            put(&mut text, "        ~50[24]$ @away;\n", "")?;
            put(&mut text, "# ~50[24]$ @open;", "~50[24]$ @open;")?;
        }
        let file = self.write("nginx.conf", &text)?;
        // One process: the workers of a killed nginx would stay.
        let global = format!(
            "daemon off; master_process off; pid {}; error_log stderr;",
            self.path("pid")
        );
        Ok(strings(&[
            "-e",
            "stderr",
            "-p",
            &self.path(""),
            "-c",
            &file,
            "-g",
            &global,
        ]))
    }

    fn traefik(&self) -> Result<Vec<String>> {
        let mut routes = self.read("traefik/dynamic.yml")?;
        self.put_behind(&mut routes)?;
        put(&mut routes, "127.0.0.1:8079", &self.gate.to_string())?;
        if self.away == Away::Open {
            let closed = "      service: gateways\n      # service: open\n";
            put(&mut routes, closed, "      service: open\n")?;
        }
        let routes = self.write("dynamic.yml", &routes)?;
        let mut text = self.read("traefik/traefik.yml")?;
        put(&mut text, "\":8080\"", &format!("\"{}\"", self.addr))?;
        put(&mut text, "127.0.0.1:8079", &self.gate.to_string())?;
        put(&mut text, "/etc/traefik/dynamic.yml", &routes)?;
        let file = self.write("traefik.yml", &text)?;
        Ok(vec![format!("--configFile={file}")])
    }

    fn caddy(&self) -> Result<Vec<String>> {
        let mut text = self.read("caddy/Caddyfile")?;
        self.put_behind(&mut text)?;
        let site = format!("\n:{} {{\n\tbind 127.0.0.1\n", self.addr.port());
        put(&mut text, "\n:8080 {\n", &site)?;
        if self.away == Away::Open {
            let (before, rest) = text.split_once("\t\t\theader Retry-After").context("503")?;
            let (_, open) = rest.split_once("\t\t\t# reverse_proxy").context("open")?;
            text = format!("{before}\t\t\treverse_proxy{open}");
        }
        let file = self.write("Caddyfile", &text)?;
        Ok(strings(&[
            "run",
            "--adapter",
            "caddyfile",
            "--config",
            &file,
        ]))
    }

    fn envoy(&self) -> Result<Vec<String>> {
        let mut text = self.read("envoy/envoy.yaml")?;
        let of = |addr: SocketAddr| format!("address: {}, port_value: {}", addr.ip(), addr.port());
        let at = |port: u16| format!("address: 127.0.0.1, port_value: {port}");
        put(
            &mut text,
            "address: 0.0.0.0, port_value: 8080",
            &of(self.addr),
        )?;
        put(&mut text, &at(8088), &of(self.behind.gateway))?;
        put(&mut text, &at(8090), &of(self.behind.gateway_grpc))?;
        put(&mut text, &at(8000), &of(self.behind.shop))?;
        if self.away == Away::Open {
            put(&mut text, "              failure_mode_allow: false\n", "")?;
            put(
                &mut text,
                "# failure_mode_allow: true",
                "failure_mode_allow: true",
            )?;
        }
        let file = self.write("envoy.yaml", &text)?;
        let args = ["-c", &file, "--disable-hot-restart", "--concurrency", "1"];
        Ok(strings(&[&args[..], &["--log-level", "warning"]].concat()))
    }

    fn haproxy(&self) -> Result<Vec<String>> {
        let mut script = self.read("haproxy/nowserving.lua")?;
        put(&mut script, "127.0.0.1:8079", &self.gate.to_string())?;
        let script = self.write("nowserving.lua", &script)?;
        let mut text = self.read("haproxy/haproxy.cfg")?;
        put(&mut text, "bind :8080", &format!("bind {}", self.addr))?;
        put(&mut text, "127.0.0.1:8079", &self.gate.to_string())?;
        put(&mut text, "/etc/haproxy/nowserving.lua", &script)?;
        self.put_behind(&mut text)?;
        if self.away == Away::Open {
            put(
                &mut text,
                "    http-request return status 503",
                "    # http-request return status 503",
            )?;
        }
        let file = self.write("haproxy.cfg", &text)?;
        Ok(strings(&["-db", "-f", &file]))
    }

    fn put_behind(&self, text: &mut String) -> Result<()> {
        put(text, "127.0.0.1:8088", &self.behind.gateway.to_string())?;
        put(text, "127.0.0.1:8000", &self.behind.shop.to_string())
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = Path::new(FILES).join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        std::fs::write(self.folder.join(name), text)?;
        Ok(self.path(name))
    }
}

/// A free address.
pub fn loopback() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

/// Everywhere; it must be there.
fn put(text: &mut String, what: &str, instead: &str) -> Result<()> {
    ensure!(text.contains(what), "the file does not say {what:?}");
    *text = text.replace(what, instead);
    Ok(())
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
