//! A fuzz target of the files that an operator names, which may be any: credentials, an nkey, PEM.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nowserving_testkit::target;

use crate::Security;

/// An example of NATS's documentation.
const SEED: &str = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";

fn files() -> Vec<Vec<u8>> {
    let pem = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    );
    let texts = [
        credentials,
        // As an editor may leave it: the marker and the seed are one line.
        format!("-----BEGIN USER NKEY SEED-----{SEED}\n"),
        format!("# of the nodes\n\n  {SEED}\n"),
        pem("CERTIFICATE").repeat(2),
        pem("PRIVATE KEY"),
        pem("EC PRIVATE KEY"),
    ];
    texts.map(String::into_bytes).into()
}

/// Each field takes it, or names itself and quotes no secret.
#[test]
fn a_file() {
    target!(files(), |bytes| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let path = Some(path);
        let none = Security::default;
        let each = [
            Security {
                credentials_file: path.clone(),
                ..none()
            },
            Security {
                nkey_file: path.clone(),
                ..none()
            },
            Security {
                tls_ca_file: path.clone(),
                ..none()
            },
            Security {
                tls_cert_file: path.clone(),
                tls_key_file: path,
                ..none()
            },
        ];
        for security in each {
            if let Err(error) = security.options() {
                let text = error.to_string();
                assert!(text.starts_with(error.field()), "{text}");
                let mut parts = SEED.as_bytes().windows(16);
                let quoted = parts.any(|part| text.as_bytes().windows(16).any(|it| it == part));
                assert!(!quoted, "{text}");
                let numbers = format!("{:?}", &SEED.as_bytes()[..16]);
                assert!(!text.contains(numbers.trim_matches(['[', ']'])), "{text}");
            }
        }
    });
}
