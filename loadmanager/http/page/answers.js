// What a view has asked the node for.

import { returns } from "./live.js";
import { token } from "./token.js";
import { useCallback, useCell, useEffect, useState } from "./ui.js";

// What `load` resolves to, loaded again whenever one of `inputs` changes, and when the node is heard again after it
// was lost: {answer, problem, isLoading, again}.
export function useAnswer(load, inputs) {
  const [state, setState] = useState({ answer: null, problem: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  const [returned, holder] = [useCell(returns), useCell(token)];
  useEffect(() => {
    const aborter = new AbortController();
    setState((before) => ({ ...before, isLoading: true }));
    load(aborter.signal).then(
      (answer) => aborter.signal.aborted || setState({ answer, problem: null, isLoading: false }),
      (problem) =>
        aborter.signal.aborted ||
        setState((before) => ({ answer: problem.status === 401 ? null : before.answer, problem, isLoading: false })),
    );
    return () => aborter.abort();
  }, [...inputs, turn, returned, holder]);
  const again = useCallback(() => setTurn((n) => n + 1), []);
  return { ...state, again };
}
