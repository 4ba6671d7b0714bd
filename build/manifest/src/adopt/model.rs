//! Facts of a model from its `config.json`, under the keys that the family uses there.

use serde_json::{Value, json};

use super::limits::PAGE;
use super::words::{Noted, Read, Words, positive, text};
use crate::check::largest;
use crate::config::{BLOCKS, KIND, SCALINGS};
use crate::family::{FeedForward, Mixers, Recurs, Switch, Traits};
use crate::numbers::{
    self, Form, Has, Number, ROTARY_DIM, TURNED_ELEMENTS, TURNED_PAIRS, of_table,
};
use crate::schema::model::{Family, FeedForward as Part, Layers, Mixer, Model, Sampling};

/// Identifier, in the form of SPDX, of a licence that nobody has looked at yet.
const LICENCE_UNKNOWN: &str = "LicenseRef-unknown";
/// Sampling parameters that leave the model's probabilities as they are.
const SAMPLING: Sampling = Sampling {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
};
/// The family of a configuration.
pub(super) fn family(words: &mut Words) -> Read<Family> {
    let known: Vec<String> = Family::ALL.iter().map(|family| named(*family)).collect();
    let rule = format!(
        "is no type of a known family; known are {}",
        known.join(", ")
    );
    words.required(&["/model_type"], &rule, |value| {
        let is = |family: &Family| {
            let mut types = family.traits().types.iter();
            types.any(|name| Some(*name) == value.as_str())
        };
        Family::ALL.iter().find(|family| is(family)).copied()
    })
}

/// A family's name, with the `model_type` of its configurations where that is another.
fn named(family: Family) -> String {
    let Traits { name, types, .. } = family.traits();
    match types {
        [only] if only == name => name.to_string(),
        _ => format!("{name} ({})", types.join(", ")),
    }
}

/// Every fact of the model `name` that its configuration decides; `predicts`: its checkpoint has a
/// layer of multi-token prediction.
pub(super) fn model(words: &mut Words, family: Family, name: &str, predicts: bool) -> Read<Model> {
    let traits = family.traits();
    let mut reader = Reader {
        words,
        form: Form {
            traits,
            parts: vec![traits.feed_forward.usual()],
        },
        predicts,
        model: json!({
            "title": name, "id": name, "family": traits.name, "licence": LICENCE_UNKNOWN,
            "sampling": SAMPLING,
        }),
    };
    reader.numbers("");
    reader.layers();
    let mut tables: Vec<_> = numbers::all(traits).map(Number::table).collect();
    tables.dedup();
    // The kind that the outer table states decides whether there is a table inside of it.
    tables.retain(|table| !table.is_empty() && !table.contains('.'));
    tables.iter().for_each(|table| reader.numbers(table));
    let _noted = reader.scaling();
    let model = reader.model;
    match words.problems.is_empty() {
        true => Ok(serde_json::from_value(model).expect("numbers and layers are a model")),
        false => Err(Noted),
    }
}

/// Manifest of a model while it is being read.
struct Reader<'a, 'b> {
    words: &'a mut Words<'b>,
    form: Form,
    predicts: bool,
    model: Value,
}

impl Reader<'_, '_> {
    fn set(&mut self, key: &str, value: Value) {
        let place = key
            .split('.')
            .fold(&mut self.model, |place, name| &mut place[name]);
        *place = value;
    }

    /// A count that was read before, by its key.
    fn count_of(&self, key: &str) -> Read<u64> {
        let value = self.model.pointer(&numbers::pointer(key));
        value.and_then(Value::as_u64).ok_or(Noted)
    }

    /// Reads the numbers of a table, if the model has it.
    fn numbers(&mut self, table: &str) {
        if !self.form.has(table) {
            return;
        }
        for number in of_table(self.form.traits, table) {
            let has = (number.of)(&self.form);
            if has != Has::Never
                && let Ok(Some(value)) = self.number(number, has)
            {
                self.set(number.key, value);
            }
        }
    }

    /// A number as the configuration states it, or as it follows from other numbers.
    fn number(&mut self, number: &Number, has: Has) -> Read<Option<Value>> {
        if let Some(derived) = self.derived(number) {
            return derived;
        }
        let (places, range) = (number.places(self.form.traits), &number.range);
        let stated = self.words.ranged(places, range)?;
        match stated.or_else(|| self.default(number.key)) {
            None if has == Has::Always => Err(self.words.unstated(places[0], range)),
            value => Ok(value),
        }
    }

    /// Value of a number that the configuration does not state.
    fn default(&self, key: &str) -> Option<Value> {
        let traits = self.form.traits;
        match key {
            "mtp.layers" => {
                let found = self.predicts && traits.mixers.predict();
                Some(json!(u64::from(found)))
            }
            "tied_head" => Some(json!(traits.tied)),
            "attention.yarn.truncate" => Some(json!(true)),
            // Quotient of `mscale` and `mscale_all_dim` in configurations: 1, since a fact checks
            // that the two are equal.
            "attention.yarn.attention_factor" => {
                let mscale = numbers::of_key("attention.yarn.mscale_all_dim").at;
                let is_stated = mscale.iter().any(|at| self.words.stated(at).is_some());
                is_stated.then(|| json!(1.0))
            }
            _ => None,
        }
    }

    /// A number that configurations state in another unit or by other numbers; none if they do not.
    fn derived(&mut self, number: &Number) -> Option<Read<Option<Value>>> {
        let traits = self.form.traits;
        let (is_latent, most) = (traits.has(Switch::Latent), largest::HEAD_DIM);
        let shares = traits.feed_forward == FeedForward::UngatedShared;
        let value = match number.key {
            "layers.count" => return Some(Ok(None)),
            TURNED_PAIRS if is_latent => return Some(Ok(None)),
            TURNED_PAIRS | "sliding.turned_pairs" => {
                let turned = self.turned(number);
                return Some(turned.map(|(_, pairs)| pairs.map(Value::from)));
            }
            "max_position" => {
                let places = number.places(traits);
                self.words.between(places, PAGE..=largest::POSITIONS)
            }
            "attention.kv_heads" if is_latent => Ok(1),
            "attention.head_dim" if is_latent => {
                let rank = self.words.count("/kv_lora_rank", most);
                let turned = self.words.count("/qk_rope_head_dim", most);
                rank.and_then(|rank| Ok(rank + turned?))
            }
            ROTARY_DIM if is_latent => self.words.count("/qk_rope_head_dim", most),
            "attention.head_dim" => self.head_dim(number),
            ROTARY_DIM | "sliding.rotary_dim" => self.turned(number).map(|(turned, _)| turned),
            "moe.shared_intermediate" if shares => {
                let places = number.places(traits);
                let experts = self.words.between(places, 1..=largest::EXPERTS);
                experts.and_then(|experts| Ok(experts * self.count_of("moe.intermediate")?))
            }
            _ => return None,
        };
        Some(value.map(|value| Some(json!(value))))
    }

    /// Width of a head: as stated, or, if the family allows it, hidden width over number of heads.
    fn head_dim(&mut self, number: &Number) -> Read<u64> {
        let traits = self.form.traits;
        let places = number.places(traits);
        if let Some(stated) = self.words.whole(places, 1..=largest::HEAD_DIM)? {
            return Ok(stated);
        }
        let (hidden, heads) = (self.count_of("hidden")?, self.count_of("attention.heads")?);
        match traits.default_head_dim && hidden.is_multiple_of(heads) {
            true => Ok(hidden / heads),
            false => {
                let rule = format!("must be stated; hidden_size = {hidden} says nothing of it");
                Err(self.words.absent(places[0], &rule))
            }
        }
    }

    /// Elements of a head that rotary embedding covers, and rotated pairs among them, if not all.
    fn turned(&mut self, number: &Number) -> Read<(u64, Option<u64>)> {
        let (traits, table) = (self.form.traits, number.table());
        let head_dim = self.count_of(&format!("{table}.head_dim"))?;
        let own = |key: &str| numbers::of_key(&format!("{table}.{key}")).places(traits);
        let of_pairs = own("turned_pairs");
        let turned = if of_pairs.is_empty() {
            own("rotary_dim")
        } else {
            of_pairs
        };
        let theta = own("rope_theta");
        let kind = theta[0].replace("rope_theta", "rope_type");
        let kind = self.words.optional(&[&kind], "must be a text", text)?;
        if turned.contains(&TURNED_ELEMENTS)
            && let Some(elements) = self.words.whole(&[TURNED_ELEMENTS], 1..=head_dim)?
        {
            return Ok((elements, None));
        }
        let rule = "must be above 0 and at most 1";
        let share = |value: &Value| positive(value).filter(|share| *share <= 1.0);
        let share = match traits.mixers {
            Mixers::Hybrid => self.words.required(turned, rule, share)?,
            _ => self.words.optional(turned, rule, share)?.unwrap_or(1.0),
        };
        let turned = (share * head_dim as f64).round() as u64;
        Ok(match kind.as_deref() == Some("proportional") {
            true => (head_dim, Some(turned / 2)),
            false => (turned, None),
        })
    }

    /// Reads the scaling of RoPE's frequencies, by the kind that is stated.
    fn scaling(&mut self) -> Read<()> {
        if self.form.traits.has(Switch::Unturned) {
            return Ok(());
        }
        let kind = self.words.optional(KIND, "must be a text", text)?;
        let of_kind = SCALINGS
            .iter()
            .filter(|[_, its]| kind.as_deref() == Some(its));
        of_kind.for_each(|[table, _]| self.numbers(table));
        Ok(())
    }

    /// Reads the order of layers.
    fn layers(&mut self) {
        let (words, traits) = (&mut *self.words, self.form.traits);
        let (layers, both) = (layers(words, traits), both(words, traits));
        let (Ok(mut layers), Ok(both)) = (layers, both) else {
            return;
        };
        layers.feed_forward.extend(both.then_some(Part::Both));
        if !layers.feed_forward.is_empty() {
            self.form.parts.clone_from(&layers.feed_forward);
        }
        self.model["layers"] = json!(layers);
    }
}

/// Whether experts stand beside the MLP of every layer.
fn both(words: &mut Words, traits: &Traits) -> Read<bool> {
    let rule = "must be true or false";
    let stated = words.optional(&["/enable_moe_block"], rule, Value::as_bool)?;
    Ok(traits.has(Switch::Both) && stated == Some(true))
}

fn layers(words: &mut Words, traits: &Traits) -> Read<Layers> {
    if traits.mixers == Mixers::Mamba {
        return blocks(words);
    }
    let count = words.count("/num_hidden_layers", largest::LAYERS);
    let alike = traits.mixers == Mixers::Attention && traits.recurs.is_none();
    let mixers = match alike {
        true => Ok(vec![Mixer::Attention]),
        false => mixers(words, count, traits),
    };
    let dense = dense(words, traits);
    let (count, mixers, dense) = (count? as usize, mixers?, dense?);
    let part = |layer| match dense.contains(&layer) {
        true => Part::Mlp,
        false => traits.feed_forward.usual(),
    };
    let parts: Vec<Part> = (0..count).map(part).collect();
    Ok(Layers {
        count,
        period: shortest(&mixers, count),
        feed_forward: match dense.is_empty() {
            true => Vec::new(),
            false => shortest(&parts, count),
        },
    })
}

/// Layers with an MLP where other layers have experts: leading layers, and those of a list.
pub(super) fn dense(words: &mut Words, traits: &Traits) -> Read<Vec<usize>> {
    if traits.mixers == Mixers::Mamba || traits.feed_forward == FeedForward::Mlp {
        return Ok(Vec::new());
    }
    let first = words.whole(&["/first_k_dense_replace"], 0..=largest::LAYERS)?;
    let first = first.unwrap_or(0) as usize;
    let rule = "must list numbers of layers, ascending";
    let listed = words.optional(&["/mlp_only_layers"], rule, |value| {
        let layers = value.as_array()?.iter();
        let layers: Option<Vec<_>> = layers.map(|layer| Some(layer.as_u64()? as usize)).collect();
        layers.filter(|layers| layers.is_sorted())
    })?;
    let listed = listed.into_iter().flatten();
    let others = listed.filter(|layer| *layer >= first);
    Ok((0..first).chain(others).collect())
}

/// Layers of one block each: letters of a text, or words of a list.
fn blocks(words: &mut Words) -> Read<Layers> {
    let rule = "must have an M (Mamba-2), * (attention) or E (experts) for each layer";
    let places = ["/hybrid_override_pattern", "/layers_block_type"];
    let blocks = words.required(&places, rule, |value| {
        let names: Vec<String> = match value {
            Value::String(letters) => letters.chars().map(String::from).collect(),
            words => serde_json::from_value(words.clone()).ok()?,
        };
        let known = |name: &String| BLOCKS.iter().find(|(words, _)| words.contains(&&**name));
        let blocks: Option<Vec<_>> = names.iter().map(known).collect();
        blocks.filter(|blocks| (1..=largest::LAYERS as usize).contains(&blocks.len()))
    })?;
    let count = blocks.len();
    let (period, feed_forward) = blocks.iter().map(|(_, block)| *block).unzip();
    Ok(Layers {
        count,
        period,
        feed_forward,
    })
}

/// The mixer of each layer: listed, or attention in every n-th layer, the last of each n.
fn mixers(words: &mut Words, count: Read<u64>, traits: &Traits) -> Read<Vec<Mixer>> {
    let rule = "must list \"linear_attention\", \"full_attention\" or \"sliding_attention\" for \
                each layer";
    let listed = words.optional(&["/layer_types"], rule, |value| {
        let names = value.as_array()?.iter();
        let mixers: Option<Vec<Mixer>> = names.map(|name| mixer(name, traits)).collect();
        let whole = |mixers: &Vec<Mixer>| count.is_ok_and(|count| count == mixers.len() as u64);
        mixers.filter(|mixers| count.is_err() || whole(mixers))
    })?;
    if let Some(listed) = listed {
        return Ok(listed);
    }
    let interval = words.whole(&["/full_attention_interval"], 1..=largest::LAYERS)?;
    let Some((interval, recurs)) = interval.zip(traits.recurs) else {
        return Err(words.absent("/layer_types", rule));
    };
    let attends = |layer: u64| layer.is_multiple_of(interval);
    let mixer = |layer| match attends(layer) {
        true => Mixer::Attention,
        false => Mixer::Recurrent(recurs),
    };
    Ok((1..=count?).map(mixer).collect())
}

fn mixer(name: &Value, traits: &Traits) -> Option<Mixer> {
    let is = |recurs: &&Recurs| recurs.stated == name;
    match name.as_str()? {
        "full_attention" => Some(Mixer::Attention),
        "sliding_attention" => Some(Mixer::Sliding),
        _ => traits.recurs.filter(is).map(Mixer::Recurrent),
    }
}

/// The shortest list that gives all `count` members when repeated.
fn shortest<T: Copy + PartialEq>(all: &[T], count: usize) -> Vec<T> {
    let repeats = |period: &usize| {
        let rest = all.iter().skip(*period);
        count.is_multiple_of(*period) && rest.zip(all).all(|(later, first)| later == first)
    };
    let period = (1..=all.len()).find(repeats);
    all[..period.unwrap_or(all.len())].to_vec()
}
