//! Messages as `front` reads them.

use async_nats::{HeaderMap, Message};
use nowserving_engine::ReplyTo;
use nowserving_front::Headers;

use crate::clock::monotonic_us;
use crate::traces;

struct Lines<'a>(Option<&'a HeaderMap>);

impl Headers for Lines<'_> {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a str, &'a str)) {
        for (name, values) in self.0.into_iter().flat_map(HeaderMap::iter) {
            for value in values {
                see(name.as_ref(), value.as_str());
            }
        }
    }
}

/// Has the message read.
pub fn viewed<T>(message: &Message, read: impl FnOnce(&nowserving_front::Message<'_>) -> T) -> T {
    read(&nowserving_front::Message {
        subject: &message.subject,
        reply: message.reply.as_deref(),
        headers: &Lines(message.headers.as_ref()),
        payload: &message.payload,
    })
}

/// Where the answer to a message goes, before more of it is known.
pub fn reply_to(message: &Message) -> ReplyTo {
    let trace = traces::begun(message.headers.as_ref());
    viewed(message, |it| {
        nowserving_front::parse::reply_to(it, monotonic_us(), trace)
    })
}
