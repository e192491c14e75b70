//! Two observations of one script side by side, and the differences that are forgiven.

use std::fmt;

use super::script::client_name;

/// One thing that a client saw, normalised: a reply, an event, the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Index of the step.
    pub step: usize,
    /// Who saw it.
    pub client: usize,
    /// What it answers, as the script writes it; `event` when nothing was asked.
    pub request: String,
    /// The result: words and `key=value` fields, separated by single spaces.
    pub text: String,
}

/// A place where two observations part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Index of the step.
    pub step: usize,
    /// Who saw it.
    pub client: usize,
    /// What it answers.
    pub request: String,
    /// What the first target showed; [`None`] when nothing.
    pub left: Option<String>,
    /// What the second showed.
    pub right: Option<String>,
}

impl Difference {
    /// What kind of difference it is, however it was reached: the operation, and the fields that differ, or
    /// the first words that do. A word `3.word` is the third of a list: its number does not count.
    pub fn class(&self) -> String {
        let op = self.request.split(' ').next().unwrap_or("");
        let left = self.left.as_deref().unwrap_or("nothing");
        let right = self.right.as_deref().unwrap_or("nothing");
        if let Some(fields) = differing_fields(left, right) {
            return format!("{op}: {}", fields.join(","));
        }
        let words = |text: &str| -> Vec<String> {
            let words = text.split(' ').filter(|word| !word.contains('='));
            words.map(|word| without_number(word).to_string()).collect()
        };
        let (left, right) = (words(left), words(right));
        let shorter = left.len().min(right.len());
        let at = (0..shorter)
            .find(|at| left[*at] != right[*at])
            .unwrap_or(shorter);
        let word = |side: &[String]| side.get(at).cloned().unwrap_or_else(|| "end".to_string());
        format!("{op}: {} / {}", word(&left), word(&right))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "step {}, client {}: {}",
            self.step + 1,
            client_name(self.client),
            self.request
        )?;
        writeln!(
            f,
            "  left   {}",
            self.left.as_deref().unwrap_or("(nothing)")
        )?;
        write!(
            f,
            "  right  {}",
            self.right.as_deref().unwrap_or("(nothing)")
        )
    }
}

/// All differences, in the order of steps. Within a step each client's view is compared on its own: between
/// clients there is no order that anybody can see.
pub fn compare(left: &[Seen], right: &[Seen]) -> Vec<Difference> {
    let mut places: Vec<(usize, usize)> = left
        .iter()
        .chain(right)
        .map(|seen| (seen.step, seen.client))
        .collect();
    places.sort_unstable();
    places.dedup();
    let mut differences = Vec::new();
    for (step, client) in places {
        let of = |side: &[Seen]| -> Vec<Seen> {
            let here = side
                .iter()
                .filter(|seen| (seen.step, seen.client) == (step, client));
            here.cloned().collect()
        };
        for (left, right) in align(&of(left), &of(right)) {
            if left.as_ref().map(|seen| &seen.text) == right.as_ref().map(|seen| &seen.text) {
                continue;
            }
            let request = left
                .as_ref()
                .or(right.as_ref())
                .map(|seen| seen.request.clone());
            differences.push(Difference {
                step,
                client,
                request: request.unwrap_or_default(),
                left: left.map(|seen| seen.text),
                right: right.map(|seen| seen.text),
            });
        }
    }
    differences
}

/// Pairs what belongs together: equal lines first, then lines that answer the same request.
fn align(left: &[Seen], right: &[Seen]) -> Vec<(Option<Seen>, Option<Seen>)> {
    let worth = |l: &Seen, r: &Seen| -> u32 {
        match (l.request == r.request, l.text == r.text) {
            (true, true) => 4,
            (true, false) => 1,
            _ => 0,
        }
    };
    let width = right.len() + 1;
    let mut best = vec![0u32; (left.len() + 1) * width];
    for l in (0..left.len()).rev() {
        for r in (0..right.len()).rev() {
            let skip = best[(l + 1) * width + r].max(best[l * width + r + 1]);
            let pair = match worth(&left[l], &right[r]) {
                0 => 0,
                worth => worth + best[(l + 1) * width + r + 1],
            };
            best[l * width + r] = skip.max(pair);
        }
    }
    let (mut l, mut r) = (0, 0);
    let mut pairs = Vec::new();
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            let worth = worth(&left[l], &right[r]);
            if worth > 0 && best[l * width + r] == worth + best[(l + 1) * width + r + 1] {
                pairs.push((Some(left[l].clone()), Some(right[r].clone())));
                (l, r) = (l + 1, r + 1);
                continue;
            }
        }
        if r == right.len()
            || (l < left.len() && best[(l + 1) * width + r] >= best[l * width + r + 1])
        {
            pairs.push((Some(left[l].clone()), None));
            l += 1;
        } else {
            pairs.push((None, Some(right[r].clone())));
            r += 1;
        }
    }
    pairs
}

/// A difference that is expected, as narrowly as it can be said.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// A pattern (`*` stands for anything) for the request's text.
    pub request: &'static str,
    /// A pattern for what the first target shows, without the fields below; `nothing` for no line.
    pub left: &'static str,
    /// A pattern for what the second shows.
    pub right: &'static str,
    /// Fields (`key=value`) that may differ. When there are any, everything else has to be equal.
    pub fields: &'static [&'static str],
    /// What becomes of the rest of the script.
    pub then: Then,
}

/// What becomes of the rest of a script behind a forgiven difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The two targets are still in the same state.
    GoOn,
    /// They are not: nothing behind it is compared.
    Stop,
}

impl Rule {
    /// Any difference in these fields of replies to requests like `request`.
    pub const fn fields(request: &'static str, fields: &'static [&'static str]) -> Rule {
        Rule {
            request,
            left: "*",
            right: "*",
            fields,
            then: Then::GoOn,
        }
    }

    /// Another result; the states part.
    pub const fn result(request: &'static str, left: &'static str, right: &'static str) -> Rule {
        Rule {
            request,
            left,
            right,
            fields: &[],
            then: Then::Stop,
        }
    }

    /// Another result, which changes no state.
    pub const fn harmless(request: &'static str, left: &'static str, right: &'static str) -> Rule {
        Rule {
            request,
            left,
            right,
            fields: &[],
            then: Then::GoOn,
        }
    }

    /// Whether it forgives `difference`.
    pub fn forgives(&self, difference: &Difference) -> bool {
        let left = difference.left.as_deref().unwrap_or("nothing");
        let right = difference.right.as_deref().unwrap_or("nothing");
        matches(self.request, &difference.request)
            && matches(self.left, left)
            && matches(self.right, right)
            && (self.fields.is_empty()
                || differing_fields(left, right)
                    .is_some_and(|fields| fields.iter().all(|f| self.fields.contains(&f.as_str()))))
    }
}

/// The word, or the name of a field, without the number of the list's item it belongs to.
fn without_number(word: &str) -> &str {
    match word.split_once('.') {
        Some((number, rest))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            rest
        }
        _ => word,
    }
}

/// The names of the fields in which two lines differ; [`None`] when their words differ too.
fn differing_fields(left: &str, right: &str) -> Option<Vec<String>> {
    if plain_words(left) != plain_words(right) {
        return None;
    }
    let fields = |text: &str| -> Vec<(String, String)> {
        let fields = text.split(' ').filter_map(|word| word.split_once('='));
        fields
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    };
    let (left, right) = (fields(left), fields(right));
    let mut names: Vec<String> = Vec::new();
    for (one, other) in [(&left, &right), (&right, &left)] {
        for field in one {
            let count = |side: &[(String, String)]| side.iter().filter(|f| *f == field).count();
            let name = without_number(&field.0).to_string();
            if count(one) != count(other) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if names.is_empty() {
        // The same fields in another order.
        names.push("order".to_string());
    }
    names.sort();
    Some(names)
}

fn plain_words(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').filter(|word| !word.contains('=')).collect();
    words.join(" ")
}

/// Whether `text` is `pattern`, in which `*` stands for any characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pattern.rsplit_once('*').map(|(_, last)| last) else {
        return rest.is_empty();
    };
    let parts: Vec<&str> = parts.collect();
    for part in &parts[..parts.len().saturating_sub(1)] {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(step: usize, client: usize, request: &str, text: &str) -> Seen {
        Seen {
            step,
            client,
            request: request.to_string(),
            text: text.to_string(),
        }
    }

    #[test]
    fn only_each_clients_own_order_counts() {
        let left = [seen(0, 0, "get", "ok v=1"), seen(0, 1, "event", "changed")];
        let right = [left[1].clone(), left[0].clone()];
        assert_eq!(compare(&left, &right), vec![]);
    }

    #[test]
    fn a_missing_line_is_one_difference() {
        let left = [
            seen(0, 0, "event", "changed"),
            seen(0, 0, "get", "ok v=1"),
            seen(1, 0, "get", "ok v=2"),
        ];
        let right = [seen(0, 0, "get", "ok v=1"), seen(1, 0, "get", "ok v=3")];
        let classes: Vec<String> = compare(&left, &right)
            .iter()
            .map(Difference::class)
            .collect();
        assert_eq!(classes, ["event: changed / nothing", "get: v"]);
        let classes: Vec<String> = compare(&right, &left)
            .iter()
            .map(Difference::class)
            .collect();
        assert_eq!(classes, ["event: nothing / changed", "get: v"]);
    }

    #[test]
    fn an_event_behind_its_reply_is_a_difference() {
        let left = [seen(0, 0, "event", "changed"), seen(0, 0, "set", "ok")];
        let right = [left[1].clone(), left[0].clone()];
        assert_eq!(compare(&left, &right).len(), 2);
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c", "abcd", false),
            ("*b*", "abc", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "acb", false),
            ("abc", "abc", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_forgives_no_more_than_it_says() {
        let difference = |left: &str, right: &str| Difference {
            step: 0,
            client: 0,
            request: "create /a".to_string(),
            left: Some(left.to_string()),
            right: Some(right.to_string()),
        };
        let rule = Rule::fields("create *", &["zxid"]);
        assert!(rule.forgives(&difference("ok zxid=1 v=1", "ok zxid=2 v=1")));
        assert!(!rule.forgives(&difference("ok zxid=1 v=1", "ok zxid=2 v=2")));
        assert!(!rule.forgives(&difference("ok zxid=1", "error zxid=2")));
        let rule = Rule::result("create *", "error *", "ok *");
        assert!(rule.forgives(&difference("error zxid=1", "ok zxid=1")));
        assert!(!rule.forgives(&difference("ok zxid=1", "error zxid=1")));
    }
}
