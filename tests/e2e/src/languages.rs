//! Python and Node.js with their NATS clients, for the programs in `examples/`, and with libraries for JWT; and Python
//! with gRPC and Envoy's messages: installed once, under the target folder.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::sync::OnceCell;

const PYTHON_CLIENT: &str = "nats-py==2.16.0";
const JS_CLIENT: &str = "@nats-io/transport-node@3.4.0";
/// gRPC, its health service, and Envoy's messages as the gRPC project publishes them.
const ENVOY_CLIENT: [&str; 4] = [
    "grpcio==1.85.1",
    "grpcio-health-checking==1.85.1",
    "xds-protos==1.85.0",
    "protobuf==7.36.2",
];
/// What checks passes in Python, and in Node.js.
const JWT_PYTHON: [&str; 2] = ["PyJWT==2.15.1", "cryptography==50.0.2"];
const JWT_JS: &str = "jose@6.2.18";
const ADVICE: &str = "`cargo xtask test` installs what is missing";

/// A language other than Rust that `examples/` has a program in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// In a virtual environment.
    Python,
    /// Node.js, in a folder with its modules.
    JavaScript,
}

impl Language {
    /// The word after the three backticks.
    #[must_use]
    pub fn fence(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::JavaScript => "js",
        }
    }

    /// The file in `examples/`.
    #[must_use]
    pub fn example(self) -> &'static str {
        match self {
            Language::Python => "shopper.py",
            Language::JavaScript => "shopper.mjs",
        }
    }

    /// Writes a program down where it finds its NATS client, which is installed if need be. Returns
    /// the interpreter and the file.
    ///
    /// # Errors
    /// The interpreter or its package manager is missing, or the client cannot be installed.
    pub async fn program(self, text: &str) -> Result<(PathBuf, PathBuf)> {
        let folder = folder(self.fence())?;
        std::fs::create_dir_all(&folder)?;
        let interpreter = match self {
            Language::Python => python(&folder).await?,
            Language::JavaScript => node(&folder).await?,
        };
        let file = folder.join(self.example());
        std::fs::write(&file, text)?;
        Ok((interpreter, file))
    }
}

/// Writes a Python program down where it finds a gRPC client and Envoy's messages, which are installed if need be. Returns
/// the interpreter and the file.
///
/// # Errors
/// The interpreter or pip is missing, or the packages cannot be installed.
pub async fn grpc_python(name: &str, text: &str) -> Result<(PathBuf, PathBuf)> {
    static INTERPRETER: OnceCell<PathBuf> = OnceCell::const_new();
    let folder = folder("grpc")?;
    std::fs::create_dir_all(&folder)?;
    let import = "import grpc_health.v1.health_pb2, envoy.service.ratelimit.v3.rls_pb2_grpc";
    let install = async || python_with(&folder, import, &ENVOY_CLIENT).await;
    let interpreter = INTERPRETER.get_or_try_init(install).await?.clone();
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok((interpreter, file))
}

/// Writes a program down where it finds PyJWT or jose, which is installed if need be. Returns the interpreter and the
/// file.
///
/// # Errors
/// The interpreter or its package manager is missing, or the library cannot be installed.
pub async fn jwt_program(language: Language, text: &str) -> Result<(PathBuf, PathBuf)> {
    let folder = folder(&format!("jwt-{}", language.fence()))?;
    std::fs::create_dir_all(&folder)?;
    let import = "import jwt, cryptography.hazmat.primitives.asymmetric.ed25519";
    let (interpreter, name) = match language {
        Language::Python => (
            python_with(&folder, import, &JWT_PYTHON).await?,
            "verify.py",
        ),
        Language::JavaScript => (node_with(&folder, "jose", JWT_JS).await?, "verify.mjs"),
    };
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok((interpreter, file))
}

/// target/languages/<name>
fn folder(name: &str) -> Result<PathBuf> {
    // target/<folder of the profile>/deps/e2e-<hash>
    let test = std::env::current_exe().context("where is this program?")?;
    let target = test.ancestors().nth(3);
    let target = target.context("this program is not in a target folder")?;
    Ok(target.join("languages").join(name))
}

async fn python(folder: &Path) -> Result<PathBuf> {
    python_with(folder, "import nats", &[PYTHON_CLIENT]).await
}

/// A virtual environment in which this can be imported: made of these packages, unless it is there.
async fn python_with(folder: &Path, import: &str, packages: &[&str]) -> Result<PathBuf> {
    let python = folder.join("venv/bin/python");
    if !python.is_file() || run(&python, &["-c", import], folder).await.is_err() {
        let venv = ["-m", "venv", "--clear", "--without-pip", "venv"];
        run(Path::new("python3"), &venv, folder).await?;
        // Without a pip of its own, and only what is imported is compiled: the rest takes many times longer.
        let of = python.to_string_lossy();
        let pip = ["-m", "pip", "--python", &of];
        let install = ["install", "--quiet", "--no-compile"];
        let install = [&pip[..], &install, packages].concat();
        run(Path::new("python3"), &install, folder).await?;
    }
    Ok(python)
}

async fn node(folder: &Path) -> Result<PathBuf> {
    node_with(folder, "@nats-io/transport-node", JS_CLIENT).await
}

/// A folder in which this module can be imported: of this package, unless it is there.
async fn node_with(folder: &Path, module: &str, package: &str) -> Result<PathBuf> {
    let import = format!("import '{module}'");
    let import = ["--input-type=module", "-e", &import];
    let node = PathBuf::from("node");
    if run(&node, &import, folder).await.is_err() {
        let install = [
            "install",
            "--no-audit",
            "--no-fund",
            "--no-save",
            "--prefix",
            ".",
            package,
        ];
        run(Path::new("npm"), &install, folder).await?;
    }
    Ok(node)
}

async fn run(program: &Path, args: &[&str], folder: &Path) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    let done = command.kill_on_drop(true).output().await;
    let done = done.with_context(|| format!("cannot start {}: {ADVICE}", program.display()))?;
    ensure!(
        done.status.success(),
        "{} {args:?} failed ({ADVICE}): {}",
        program.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}
