"""Words that say nothing about where a text comes from: two texts may share any number of them by chance.

Everyday English, and the vocabulary of this trade: whoever is asked to review a file will say "review" and
"file". The list only has to be generous. A word too many costs an edge that a person adds again; a word too
few invents one.
"""

from __future__ import annotations

_EVERYDAY = """
a able about above accept accepted access according account across act action actions active actual actually
add added adding addition additional address advice affect after afterwards again against age ago agree
agreed ahead aim all allow allowed allows almost alone along already also although always am among amount an
and another answer answers any anybody anyone anything anyway anywhere apart apparently appear appears apply
are area areas around arrive article as aside ask asked asking asks at attempt attention author available
avoid aware away back background bad base based basic basically be bear became because become becomes been
before began begin beginning behind being believe below beside besides best better between beyond big bit
black blue board body book both bottom bring broad brought build building built business but buy by call
called calls came can cannot care careful carefully carry case cases catch cause caused causes center
central certain certainly chance change changed changes changing check checked checking checks children
choice choose clear clearly close closed closely cold color come comes coming comment comments common
commonly community company compare compared complete completed completely concern concerned condition
conditions consider considered contain contained contains content contents context continue continued
control copy correct correctly cost could count country couple course cover covered create created creates
creating current currently cut daily dark data date day days dead deal decide decided decision deep default
define defined definition degree depend depends depth describe described description design detail details
determine develop developed development did difference different difficult direct direction directly discuss
discussed do document documents does doing done door doubt down draw drive drop due during each earlier
early easily easy edge effect effort either else elsewhere end ended ends enough ensure entire entirely
equal especially essential etc even evening event events ever every everybody everyone everything everywhere
evidence exact exactly example examples except exist existing exists expect expected experience explain
explained extra eye face fact facts fair fall false family famous far fast father favor feature features
feel feet felt few field figure figures final finally find finding findings finds fine finish finished fire
first fit five fix fixed fixes focus follow followed following follows food for force form forms forward
found four free friend from front full fully function further future gain game gave general generally get
gets getting girl give given gives giving glad global go goal goes going gone good got great green ground
group groups grow guess guide had half hand handle hands happen happened happens happy hard has have having
he head hear heard heart held hello help helped helpful helps her here high higher highest him himself his
history hit hold home hope hot hour hours house how however human hundred idea ideas if image impact
important improve improved in include included includes including increase indeed indicate information
inside instance instead interest interested interesting into introduction involved is issue issues it item
items its itself job join just keep keeps kept key kind kinds knew know knowledge known knows lack land
language large larger largest last late later latest law lay lead leading learn learned least leave leaves
left length less let letter letters level levels lie life light like likely limit limited line lines link
list listed lists little live lives living local long longer look looked looking looks lose lost lot love
low lower made main mainly major make makes making man manner many map mark market matter matters may maybe
me mean meaning means measure meet member members men mention mentioned mere method methods middle might
mile mind minor minute minutes miss missing mistake model modern moment money month months more morning most
mostly mother mountain move moved much multiple music must my myself name named names nature near nearly
necessary need needed needs neither never new news next night no nobody none nor normal normally not note
noted notes nothing notice now number numbers object obvious obviously occur of off offer offers office
often oh ok okay old older on once one ones only onto open opened opinion or order ordinary original other
others otherwise our out outside over overall own page pages paper paragraph part particular particularly
parts party pass passed passes past path pattern pay people per percent perfect perhaps period person
picture piece pieces place placed places plain plan plans play please plus point points possible possibly
potential power practice precise prefer prepare present press pretty prevent previous previously price
probably problem problems proceed process produce produced product program progress project proper properly
property propose proposed protect prove provide provided provides public pull purpose push put quality
question questions quick quickly quite raise ran range rate rather reach reached read reader readers reading
reads ready real really reason reasons receive received recent recently recommend record recorded red reduce
refer reference regard related relative relevant remain remains remember remove removed repeat replace
replaced reply report reported reports request require required requires research respect respond response
rest result results return returned returns review reviewed reviews right risk risks river road role room
round rule rules run running runs safe said same sample save saw say saying says school sea search second
section sections see seem seems seen select send sense sent sentence sentences separate serious serve
service set sets setting several shall shape share shared she short should show showed shown shows side
sides sight sign significant similar simple simply since single sit site situation six size slow small
smaller so some somebody someone something sometimes somewhere soon sort sound source sources space speak
special specific specifically speed spend spent stage stand standard stands start started starting starts
state stated statement states stay step steps still stop stopped story straight street strong structure
student study style subject such sudden suddenly suggest suggested suggestion suitable sum summary sun
support supported suppose sure surely surface system systems table take taken takes taking talk task tasks
teach team tell tells ten term terms text than thank thanks that the their them themselves then there
therefore these they thing things think third this those though thought thoughts thousand three through
throughout thus time times title to today together told too took tool tools top topic topics total touch
toward towards town track tree tried trouble true truth try trying turn turned turns twice two type types
under understand understanding understood unit unless unlike until up upon upper us use used useful user
users uses using usual usually value values various verify version versions very via view visible voice wait
walk want wanted wants war was watch water way ways we week weeks weight well went were what whatever when
where whether which while white who whole whom whose why wide will wind window wish with within without
woman wonder word words work worked working works world worse worst worth would write writes writing written
wrong wrote year years yellow yes yet you young your yourself zero
"""

_TRADE = """
agent agents analyse analysed analysis analyze analyzed api app application applications architecture
argument arguments array assert async audit auth authentication authorization backend batch behavior
behaviour benchmark binary block boolean branch brief browser budget buffer bug bugs byte bytes cache
callback candidate class classes cleanup cli client clients cloud code codebase command commands commit
commits compile compiler component components concise concurrency config configuration connection console
constant constraint container coverage crash criteria critic css csv customer database db debug decode
dependencies dependency deploy deployment developer device diagram diff directory disk doc docker docs
documentation domain draft edit editor email encode encoding endpoint endpoints engine entry environment
error errors exception exceptions execute execution exit export fail failed failing fails failure failures
fallback feedback fetch file filename files filter flag flags folder folders format framework frontend
functional functionality functions generate generated generic git github handler handlers handling hash
header headers helper hook host html http identified identify implement implementation implemented import
imports improvement improvements index info infrastructure init initial input inputs insert install integer
integration interface interfaces internal investigate json kernel keyword keywords layer layout lexer
library lint linter listing load loaded locate lock log logging logic login logs loop machine maintain
manage markdown memory merge message messages metadata metric metrics migrate migration mode models modified
modify module modules monitor mutex namespace network node nodes null objects operation operations
optimization optimize option optional options output outputs override overview owner package packages
parallel parameter parameters parse parser patch paths patterns pending performance permission permissions
pipeline plugin pointer policy port prior priority procedure processes processing profile programs prompt
prompts properties protocol provider proxy query queue readme recipe recommendation recommendations refactor
refactored refactoring reference references regression release remote render repo report repository requests
requirement requirements researcher resource resources responses retry reviewer rewrite root route routes
runtime schema scope script scripts security semantic sequence serial server servers services session
sessions shell snippet software solution source spec specification stack status storage store strategy
stream string strings structured style subagent subagents suite summaries summarise summarised summarize
summarized support symbol sync syntax synthesis synthesise synthesize tag target targets technical template
templates terminal test tested testing tests thread threads timeout token tokens trace transaction translate
translation trigger tuple typed ui unit unused update updated updates upgrade url usage utility validate
validated validation variable variables verdict verified warning warnings web worker workers workflow
workflows workspace yaml
"""

COMMON = frozenset(_EVERYDAY.split()) | frozenset(_TRADE.split())
