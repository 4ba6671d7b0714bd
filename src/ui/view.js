// Turns of a conversation on the page.

/** How near to its end, in pixels, a conversation is followed. */
const FOLLOWED_PX = 60;

/** Runs `change` and keeps the end of the conversation in view if it was. */
function following(change) {
  const log = $("log");
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < FOLLOWED_PX;
  change();
  if (near) log.scrollTop = log.scrollHeight;
}

/** An article with a name, and room for buttons at its end. */
class TurnView {
  constructor(conversation, turn) {
    this.conversation = conversation;
    this.turn = turn;
    this.number = conversation.turns.indexOf(turn) + 1;
    this.box = element($("log"), "article", turn.role);
    const who = turn.role === "user" ? "You" : "Atlas";
    const name = element(this.box, "h2", "hidden", `${who}, message ${this.number}`);
    name.id = "turn-" + this.number;
    this.box.setAttribute("aria-labelledby", name.id);
    turn.view = this;
  }

  get name() {
    return "message " + this.number;
  }

  act(word, act) {
    this.acts ??= element(this.box, "div", "acts");
    return button(this.acts, word, this.name, act);
  }

  /** Puts a field with the text of the turn in the place of its content. */
  edit(word, done) {
    const fields = element(this.box, "div");
    const field = element(fields, "textarea");
    field.value = this.turn.text;
    field.rows = Math.min(this.turn.text.split("\n").length + 1, 12);
    field.dir = "auto";
    field.setAttribute("aria-label", "Text of " + this.name);
    const shown = [...this.box.children].filter((child) => child !== fields && child.tagName !== "H2");
    const show = (hidden) => shown.forEach((child) => { child.hidden = hidden; });
    show(true);
    const row = element(fields, "div", "row");
    button(row, word, this.name, () => done(field.value));
    if (this.turn.role === "user") sendsByEnter(field, () => done(field.value));
    button(row, "Cancel", "", () => {
      fields.remove();
      show(false);
      this.editButton.focus();
    });
    field.focus();
  }
}

class UserView extends TurnView {
  constructor(conversation, turn) {
    super(conversation, turn);
    const text = element(this.box, "div", "text plain", turn.text);
    text.dir = "auto";
    if (turn.files?.length) {
      const files = element(this.box, "div");
      for (const file of turn.files) chip(files, file);
    }
    this.editButton = this.act("Edit", () => this.edit("Send", (text) => resend(conversation, turn, text)));
    this.act("Copy", () => copy(turn.text));
    this.act("Delete", () => removeTurn(conversation, turn));
  }
}

class ReplyView extends TurnView {
  constructor(conversation, turn) {
    super(conversation, turn);
    this.body = element(this.box, "div");
    this.figures = element(this.box, "div", "figures");
    this.pace = new Pace(() => following(() => this.show()));
    this.show();
  }

  /** Makes the page say what the turn says. */
  show() {
    const { turn } = this;
    if (turn.live) this.box.setAttribute("aria-busy", "true");
    else this.box.removeAttribute("aria-busy");
    if (turn.thought) this.showThought();
    if (turn.text) this.showText();
    turn.calls.forEach((call) => this.showCall(call));
    const line = figures(turn, server.context);
    if (this.figures.textContent !== line) this.figures.textContent = line;
    if (!turn.live && !this.acts) this.end();
  }

  showThought() {
    if (!this.thought) {
      this.fold = document.createElement("details");
      this.body.prepend(this.fold);
      element(this.fold, "summary");
      const box = element(this.fold, "div", "thought");
      box.dir = "auto";
      this.thought = box.appendChild(document.createTextNode(""));
    }
    const { turn } = this;
    const more = turn.thought.slice(this.thought.length);
    if (more) this.thought.appendData(more);
    const thinks = turn.live && !turn.text && !turn.calls.length;
    this.fold.firstChild.textContent = thinks ? "Thinking…" : "Thoughts";
  }

  showText() {
    if (!this.text) {
      this.text = element(this.body, "div", "text");
      this.markdown = new Markdown(this.text);
    }
    this.text.classList.toggle("plain", Boolean(this.raw));
    if (this.raw) this.text.textContent = this.turn.text;
    else this.markdown.show(this.turn.text);
  }

  showCall(call) {
    this.calls ??= new Map();
    let card = this.calls.get(call);
    if (!card) {
      card = { box: element(this.body, "section", "call") };
      card.box.setAttribute("aria-label", "Call of " + call.name);
      element(card.box, "h3", "", "calls " + call.name);
      card.shown = element(card.box, "pre");
      card.shown.tabIndex = 0;
      this.calls.set(call, card);
    }
    if (card.shown.textContent !== call.arguments) card.shown.textContent = call.arguments;
  }

  /** What a reply that is complete offers. */
  end() {
    const { turn, conversation } = this;
    if (turn.problem) element(this.box, "div", "error", turn.problem);
    if (turn.calls.length) this.endCalls();
    this.act("Copy", () => copy(turn.text));
    const raw = this.act("Raw", () => {
      this.raw = !this.raw;
      raw.ariaPressed = String(this.raw);
      this.markdown?.clear();
      if (turn.text) this.showText();
    });
    raw.ariaPressed = "false";
    this.editButton = this.act("Edit", () => this.edit("Save", (text) => amend(conversation, turn, text)));
    this.act("Regenerate", () => regenerate(conversation, turn));
    this.act("Delete", () => removeTurn(conversation, turn));
  }

  /** Lets the user play the tools: their results go back as messages. */
  endCalls() {
    const { turn, conversation } = this;
    if (turn.finish === "length" || turn.problem || !turn.calls.every(isWhole)) {
      for (const { box } of this.calls.values()) {
        element(box, "p", "error", "The reply was cut off: this call is not whole, and is not made.");
      }
      return;
    }
    const isLast = conversation.turns.at(-1) === turn;
    if (!isLast && !turn.answered) return;
    for (const [call, { box }] of this.calls) {
      const label = element(box, "label", "figures", "Result of " + call.name);
      const field = element(label, "textarea", "mono");
      field.rows = 2;
      field.value = call.result ?? "";
      field.disabled = Boolean(turn.answered);
      field.oninput = () => {
        call.result = field.value;
        keepSoon.ask();
      };
    }
    if (turn.answered) return;
    const word = turn.calls.length > 1 ? "Send results" : "Send result";
    button(this.body, word, "", () => sendResults(conversation, turn)).className = "main";
  }
}

/** What may be asked first. */
const EXAMPLES = [
  "What is the capital of France?",
  "Write a Python function that reverses a list.",
  "Explain in three sentences what a language model does.",
];

/** A conversation that has not begun says what the model is, and how to begin. */
function drawStart() {
  const box = element($("log"), "section", "start");
  box.setAttribute("aria-label", "Start");
  if (server.model) {
    const held = grouped(server.context);
    element(box, "p", "", `${server.model} answers here. A chat holds ${held} tokens, and is sent to this server alone.`);
  }
  for (const example of EXAMPLES) button(box, example, "", () => {
    giveBack(current, example);
    keepSoon.ask();
    countSoon();
    $("prompt").focus();
  });
}

/** Draws the whole of a conversation. */
function drawConversation(conversation) {
  $("log").replaceChildren();
  if (!conversation.turns.length) drawStart();
  for (const turn of conversation.turns) drawTurn(conversation, turn);
  $("log").scrollTop = $("log").scrollHeight;
}

function drawTurn(conversation, turn) {
  return turn.role === "user" ? new UserView(conversation, turn) : new ReplyView(conversation, turn);
}

/** What is folded is printed too. */
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("#log details:not([open])")];
  for (const fold of unfolded) fold.open = true;
});
addEventListener("afterprint", () => {
  for (const fold of unfolded) fold.open = false;
});
