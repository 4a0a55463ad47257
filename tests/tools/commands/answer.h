// What tests ask of the built program and read from its answers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/read/json_reader.h"
#include "tests/tools/run_program.h"

namespace shardplan {

using Words = std::vector<std::string>;

// An estimate of Llama-3-8B on one node of 8 H200, with more words.
Words estimate_words(const Words& more);

// Words for a search that leaves the overlaps as Megatron-LM has them.
const Words& without_overlaps();

// The words with these options ("--tp 2 --sequence-parallel on") in place of theirs.
Words with_options(Words words, const std::string& options);

// A shell line in which shardplan is the program; its exit code.
int shell(const std::string& line);

JsonValue json_of(const ProgramRun& run);                    // its stdout
std::vector<JsonValue> json_lines(const std::string& text);  // one of each line
const JsonValue* find(const JsonValue& value, std::string_view key);
const JsonValue& at(const JsonValue& value, std::string_view key);  // fails the test without it

std::int64_t num_lines(const std::string& text);
bool contains(const std::string& text, const std::string& part);

// Refused with this code, in one line, and no answer.
void check_refused(const ProgramRun& run, int exit_code);

}  // namespace shardplan
