// The values that test_clients.py hands over on stdin, and the URL of the notary.
import { readFileSync } from "node:fs";

interface Given {
  party: string;
  signature: string;
  wrong_signature: string;
  inputs: [string, ...string[]];
  references: string[];
  from: number;
  content_hash: string;
  second_content_hash: string;
  transaction: string;
}

export const given: Given = JSON.parse(readFileSync(0, "utf8")) as Given;
export const url: string = process.argv[2]!;
