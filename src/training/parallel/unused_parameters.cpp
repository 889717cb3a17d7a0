// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/unused_parameters.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/script_stack.h"

namespace accelerate {
namespace {

// The reducer does not expose which parameters it waits for, but the end of its
// message lists their indices.
std::string names_in(
    const std::string& text,
    const std::vector<std::string>& names) {
  const std::string marker = "did not receive grad for rank ";
  const auto found = text.find("indices which " + marker);
  if (found == std::string::npos) {
    return {};
  }
  std::istringstream rest(text.substr(text.find(':', found) + 1));
  std::string list;
  for (size_t index = 0; rest >> index && index < names.size();) {
    list += str_cat(list.empty() ? "'" : ", '", names[index], "'");
  }
  return list;
}

} // namespace

void name_unused_parameters(
    const std::vector<std::string>& names,
    const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (text.find("Expected to have finished reduction") == std::string::npos) {
      throw;
    }
    const std::string list = names_in(text, names);
    throw UsageError(str_cat(
        "[forward] ",
        list.empty() ? "A parameter" : list,
        " received no gradient in the last backward pass. Use it in the loss, "
        "freeze it, or ",
        has_script_stack()
            ? "pass DistributedDataParallelKwargs(find_unused_parameters=True)"
            : "set .ddp.find_unused_parameters = true"));
  }
}

void refuse_second_engine(const ParameterSet& model) {
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const auto accumulator =
        torch::autograd::impl::try_get_grad_accumulator(model.parameters[i]);
    // All hooks except those of c10d's reducers belong to the user.
    const auto is_averaged = [](const auto& hook) {
      return dynamic_cast<torch::autograd::utils::LambdaPostHook*>(
                 hook.get()) != nullptr;
    };
    if (accumulator && std::any_of(
                           accumulator->post_hooks().begin(),
                           accumulator->post_hooks().end(),
                           is_averaged)) {
      throw UsageError(str_cat(
          "[prepare] The gradient of parameter '",
          model.names[i],
          "' is already synchronised by another prepared model. Prepare a "
          "module once, with one Accelerator, and use the result"));
    }
  }
}

} // namespace accelerate
