//! The catalogues of words: ours, and a shop's over them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{PageError, files};

const ENGLISH: &str = "en";
/// The order in which they are listed on the page.
const ORDER: [&str; 5] = [ENGLISH, "zh-Hant", "ja", "de", "ar"];

/// A language that the page can be read in.
pub struct Language {
    /// As the catalogue is named: `zh-Hant`.
    pub name: String,
    /// As its speakers call it.
    pub own_name: String,
    /// Over the English one, so that no word is missing.
    pub catalogue: minijinja::Value,
}

/// English, our others, then those that only the shop has.
pub fn languages(of_shop: &BTreeMap<String, Value>) -> Result<Vec<Language>, PageError> {
    let mut ours = BTreeMap::new();
    for (file, bytes) in files::CATALOGUES {
        let name = file.strip_suffix(".json").unwrap_or(file);
        let catalogue: Value = serde_json::from_slice(bytes)
            .map_err(|error| PageError::new(format!("catalogues/{file}"), error))?;
        ours.insert(name, catalogue);
    }
    let more = of_shop.keys().map(String::as_str);
    let more = more.filter(|name| !ORDER.contains(name));
    let languages = ORDER.into_iter().chain(more).map(|name| {
        let layers = [ENGLISH, name];
        let layers = layers
            .into_iter()
            .flat_map(|name| [ours.get(name), of_shop.get(name)]);
        let mut catalogue = Value::Null;
        for layer in layers.flatten() {
            lay_over(&mut catalogue, layer);
        }
        let own_name = catalogue["name"].as_str().unwrap_or(name).to_owned();
        Language {
            name: name.to_owned(),
            own_name,
            catalogue: minijinja::Value::from_serialize(&catalogue),
        }
    });
    Ok(languages.collect())
}

/// Key by key. What is not an object replaces what is below it.
pub fn lay_over(below: &mut Value, over: &Value) {
    match (below, over) {
        (Value::Object(below), Value::Object(over)) => {
            for (key, value) in over {
                lay_over(below.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (below, over) => *below = over.clone(),
    }
}
