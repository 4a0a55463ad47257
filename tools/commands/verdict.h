// The verdict on a plan as every command says it: one word, one colour, one exit code.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tools/commands/command.h"
#include "tools/commands/prediction.h"
#include "tools/options/options.h"
#include "tools/report/terminal.h"

namespace shardplan {

// "FITS", "OVER 80 %", "TIGHT", "DOES NOT FIT".
std::string verdict_words(const Judgement& judged);
// Likewise; else "INVALID", "UNSUPPORTED", "ERROR".
std::string verdict_words(const Prediction& prediction);
// For machines: "fits", "over", ..., "invalid".
std::string_view verdict_name(const Prediction& prediction);

Colour verdict_colour(MemoryVerdict verdict);
Colour verdict_colour(const Prediction& prediction);

// Does not run, or breaks the rule that was asked for.
bool is_negative(const Prediction& prediction);

// --fail-on: the mildest verdict that is a failure; without it DOES NOT FIT.
std::optional<MemoryVerdict> fails_on(const Options& options);

// 0: it runs. 1: it does not, is invalid, breaks a rule that was asked for, or is as bad as
// --fail-on says. 2: nobody can tell, as it is unsupported.
ExitCode exit_code_of(const Prediction& prediction, std::optional<MemoryVerdict> fails_on);

}  // namespace shardplan
