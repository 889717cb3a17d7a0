# SPDX-License-Identifier: Apache-2.0
import warnings

said = []
warnings.showwarning = lambda message, *_: said.append(str(message))
warnings.simplefilter("always")
