// The Vercel AI SDK against a server, over each of its three providers: `vercel.mjs BASE MODEL`.
// Ends with an exception at the first answer that is not as the library's users expect it.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool,
} from "ai";
import { z } from "zod";

const [BASE, MODEL] = process.argv.slice(2);
const baseURL = `${BASE}/v1`, apiKey = "none";
const providers = {
  "openai-compatible": createOpenAICompatible(
    { name: "atlas", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true })(MODEL),
  "openai (responses)": createOpenAI({ baseURL, apiKey })(MODEL),
  anthropic: createAnthropic({ baseURL, apiKey })(MODEL),
};
const prompt = "What is the capital of France?";
const forecast = "What is the weather in Paris?";
const GREEDY = { maxRetries: 0, temperature: 0, maxOutputTokens: 512 };
const schema = z.object({ capital: z.string() });

const parts = {
  async text(model) {
    const answer = await generateText({ model, prompt, ...GREEDY });
    assert(answer.text && answer.usage.totalTokens > 0);
  },

  async stream(model) {
    const answer = streamText({ model, prompt, ...GREEDY });
    const kinds = new Set();
    for await (const part of answer.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part));
      kinds.add(part.type);
    }
    assert(kinds.has("text-delta") && kinds.has("finish"));
    assert((await answer.usage).outputTokens > 0);
  },

  async tools(model) {
    let city;
    const answer = streamText({
      model, prompt: forecast, ...GREEDY, stopWhen: stepCountIs(3),
      tools: { get_weather: tool({
        description: "Get the weather of a city.", inputSchema: z.object({ city: z.string() }),
        execute: async (input) => { city = input.city; return "12 C, rain"; } }) } });
    for await (const part of answer.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part));
    }
    assert.equal(city, "Paris");
    assert(await answer.text);
  },

  async output(model) {
    const asked = { model, output: Output.object({ schema }), prompt, ...GREEDY };
    assert("capital" in (await generateText(asked)).output);
    const stream = streamText(asked);
    for await (const part of stream.partialOutputStream) assert(part);
    assert("capital" in (await stream.output));
  },

  // What `output` replaces; programs still call it.
  async object(model) {
    const asked = { model, schema, prompt, ...GREEDY };
    assert("capital" in (await generateObject(asked)).object);
    const stream = streamObject(asked);
    for await (const part of stream.partialObjectStream) assert(part);
    assert("capital" in (await stream.object));
  },
};

for (const [provider, model] of Object.entries(providers)) {
  for (const [name, part] of Object.entries(parts)) {
    await part(model);
    console.log(`ai, ${provider}: ${name} is as expected`);
  }
}
