// What the corpus asks, and the answers that must stay as they are. A question has several answers,
// each with a name of its own, so that a difference can be found.
#pragma once

#include <functional>
#include <string>

#include "data/read/case_line.h"

namespace shardplan {

using TakeAnswer = std::function<void(const std::string& name, const std::string& text)>;

// A case line. The answers of a valid plan:
//   explain     what `estimate --explain --format json` says, but for measured runs nearby
//   time        a step's parts, its operations and its limit, to the last bit
//   trace       the file of --trace
//   price       what search takes it for
//   parameters  of every stage
//   refusals    why the plan is none once one thing is changed, for many such things
//   events      what replays of the allocator are fed with, and what they find
//   ranks       memory of the last data-parallel rank, where a framework tells them apart
//   program     native: tensors and operations of two ranks
// Any other line has one answer, "refusal".
void answer_case(const std::string& line, const Library& library, const TakeAnswer& take);

// The programs that two ranks of a plan of the native framework run.
std::string program_answer(const Job& job, const Plan& plan);

// Which rule each of many changes breaks, with its message.
std::string refusals_answer(const Job& job, const Plan& plan);

// A line "NAME AXES PRICES FLOORS CASE": prices of so many valid plans of the case's job in a fixed
// order, all from one table, and the floors of branches around so many of them. AXES: default, all.
void answer_prices(const std::string& line, const Library& library, const TakeAnswer& take);

// A line of words for the program: exit code, output, messages and the files that it writes into
// the folder `written`. Runs in the current folder.
void answer_command(const std::string& line, const TakeAnswer& take);

}  // namespace shardplan
