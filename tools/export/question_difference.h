// In which fields two questions differ, where their predictions do.
#pragma once

#include <string>

#include "tools/options/question.h"

namespace shardplan {

// "master_dtype bf16 -> fp32, tp 2 -> 4", from `read` to `asked`: the fields that change the
// prediction of `read` on their own, all that differ where none does, the model's name where no
// field differs.
std::string question_difference(const Question& asked, const Question& read);

}  // namespace shardplan
