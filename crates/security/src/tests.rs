#![allow(clippy::unwrap_used)]
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use nkeys::KeyPair;
use tempfile::TempDir;

use super::*;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
const PRIVATE_KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

/// A folder for the files of a test.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, content: &str, mode: u32) -> Option<PathBuf> {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Some(path)
    }

    fn credentials(&self, seed: &str, mode: u32) -> Option<PathBuf> {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        self.write("user.creds", &text, mode)
    }
}

fn user_seed() -> String {
    KeyPair::new_user().seed().unwrap()
}

fn refused(security: &Security) -> String {
    let Err(error) = security.options() else {
        panic!("taken: {security:?}");
    };
    let text = error.to_string();
    assert!(text.starts_with(error.field()), "{text}");
    text
}

#[test]
fn nothing_is_needed() {
    let none = Security::default();
    assert!(!none.wants_tls());
    assert!(none.options().is_ok());
    assert_eq!(serde_json::to_string(&none).unwrap(), "{}");
}

#[test]
fn files_have_the_names_of_the_fields() {
    let text = r#"{"credentials_file": "a", "nkey_file": "b", "tls_ca_file": "c",
        "tls_cert_file": "d", "tls_key_file": "e", "tls_first": true}"#;
    let security: Security = serde_json::from_str(text).unwrap();
    let back = serde_json::to_value(&security).unwrap();
    for field in FIELDS {
        assert!(back.get(field).is_some(), "{field}");
    }
    assert_eq!(back.as_object().unwrap().len(), FIELDS.len());
    assert!(serde_json::from_str::<Security>(r#"{"tls_ca": "c"}"#).is_err());
}

#[test]
fn fields_that_do_not_go_together_are_refused() {
    let file = || Some(PathBuf::from("file"));
    let both = Security {
        credentials_file: file(),
        nkey_file: file(),
        ..Security::default()
    };
    let no_key = Security {
        tls_cert_file: file(),
        ..Security::default()
    };
    let no_certificate = Security {
        tls_key_file: file(),
        ..Security::default()
    };
    for (security, field) in [
        (both, "nkey_file"),
        (no_key, "tls_cert_file"),
        (no_certificate, "tls_key_file"),
    ] {
        assert_eq!(security.check().unwrap_err().field(), field);
        assert!(refused(&security).starts_with(field));
    }
}

#[test]
fn good_files_are_taken() {
    let files = Files::new();
    let seed = user_seed();
    let by_credentials = Security {
        credentials_file: files.credentials(&seed, 0o600),
        tls_ca_file: files.write("ca", &CERTIFICATE.repeat(2), 0o644),
        ..Security::default()
    };
    let by_nkey = Security {
        nkey_file: files.write("nkey", &format!("# of the nodes\n\n  {seed}\n"), 0o400),
        tls_cert_file: files.write("cert", CERTIFICATE, 0o644),
        tls_key_file: files.write("key", PRIVATE_KEY, 0o600),
        tls_first: true,
        ..Security::default()
    };
    for security in [by_credentials, by_nkey] {
        assert!(security.wants_tls());
        let applied = security.options();
        assert!(applied.is_ok(), "{:?}", applied.err());
    }
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let files = Files::new();
    let seed = user_seed();
    let credentials = Security {
        credentials_file: files.credentials(&seed, 0o644),
        ..Security::default()
    };
    let nkey = Security {
        nkey_file: files.write("nkey", &seed, 0o604),
        ..Security::default()
    };
    let tls = Security {
        tls_cert_file: files.write("cert", CERTIFICATE, 0o644),
        tls_key_file: files.write("key", PRIVATE_KEY, 0o660),
        ..Security::default()
    };
    for security in [credentials, nkey, tls] {
        let text = refused(&security);
        assert!(text.contains("chmod 600"), "{text}");
    }
}

#[test]
fn files_that_hold_something_else_are_refused_without_their_content() {
    let files = Files::new();
    let account = KeyPair::new_account().seed().unwrap();
    let nkey = |content: &str| Security {
        nkey_file: files.write("nkey", content, 0o600),
        ..Security::default()
    };
    for content in ["", "# a comment", "SUSECRET", &account] {
        let text = refused(&nkey(content));
        assert!(text.contains("not the seed"), "{text}");
        assert!(content.is_empty() || !text.contains(content), "{text}");
    }
    let credentials = Security {
        credentials_file: files.credentials("SUSECRETSECRETSECRET", 0o600),
        ..Security::default()
    };
    let text = refused(&credentials);
    assert!(text.contains("not a credentials file"), "{text}");
    assert!(!text.contains("SECRETSECRET"), "{text}");
    let ca = |content| Security {
        tls_ca_file: files.write("ca", content, 0o644),
        ..Security::default()
    };
    assert!(refused(&ca("roots")).contains("no certificate"));
    assert!(refused(&ca(PRIVATE_KEY)).contains("no certificate"));
    let missing = Security {
        tls_ca_file: Some(files.0.path().join("none")),
        ..Security::default()
    };
    assert!(refused(&missing).contains("none: No such file"));
    let folder = Security {
        tls_ca_file: Some(files.0.path().to_owned()),
        ..Security::default()
    };
    assert!(refused(&folder).contains("not a regular file"));
}

#[test]
fn errors_of_tls_say_what_to_do() {
    let unknown = explained("IO error: invalid peer certificate: UnknownIssuer");
    assert!(unknown.contains("tls_ca_file"), "{unknown}");
    let none = explained("received fatal alert: CertificateRequired");
    assert!(none.contains("tls_cert_file"), "{none}");
    assert_eq!(explained("timed out"), "timed out");
}
