//! A message of NATS on its way in.

use bytes::Bytes;
use nowserving_protocol::error::ApiError;

/// The header lines of a message, in the form in which the connection has them.
pub trait Headers {
    /// Shows all lines, in order, as name and value.
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a str, &'a str));
}

/// No headers.
impl Headers for () {
    fn visit<'a>(&'a self, _: &mut dyn FnMut(&'a str, &'a str)) {}
}

/// Names and values.
impl<N: AsRef<str>, V: AsRef<str>> Headers for &[(N, V)] {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a str, &'a str)) {
        for (name, value) in *self {
            see(name.as_ref(), value.as_ref());
        }
    }
}

/// A message as the connection has it.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    pub subject: &'a str,
    /// Where the answer goes.
    pub reply: Option<&'a str>,
    pub headers: &'a dyn Headers,
    /// Shared: a request that waits keeps it without a copy.
    pub payload: &'a Bytes,
}

impl<'a> Message<'a> {
    /// The value of a header.
    ///
    /// # Errors
    /// `bad_request`: it is there twice.
    pub fn header(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        let (mut value, mut count) = (None, 0);
        self.headers.visit(&mut |other, its| {
            if other == name {
                value = Some(its);
                count += 1;
            }
        });
        match count {
            0 | 1 => Ok(value),
            _ => Err(ApiError::bad_request(format!(
                "{name}: must be there once at most"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_there_once_at_most() {
        let lines = [("a", "1"), ("b", "2"), ("a", "3")];
        let message = Message {
            subject: "s",
            reply: None,
            headers: &&lines[..],
            payload: &Bytes::new(),
        };
        assert_eq!(message.header("b"), Ok(Some("2")));
        assert_eq!(message.header("c"), Ok(None));
        let error = message.header("a").map_err(|error| error.message);
        assert_eq!(error, Err("a: must be there once at most".into()));
    }
}
