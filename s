<text x="12" y="98">1 rank1</text>
<text x="12" y="170">2 rank2</text>
<text x="12" y="242">8 rank8</text>
<text x="12" y="314">64 rank64</text>
